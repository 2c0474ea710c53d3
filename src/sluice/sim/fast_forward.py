"""Fast-forward: steps in which the same requests decode are done at once, with the outcome of doing them one by one.

It ends before anything else happens: before a request ends or its client leaves, before a message comes, before a
page would have to be evicted, and before the moment up to which the replica may run. Each of its steps has a time and a
residual of its own, and pages are taken and published in the order of the steps.

Where steps teach a pacer what they cost, each is planned by what the one before it took, so nothing can be skipped;
nor where steps overlap, where pages are stored on tiers, or where rows have drafts.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from sluice.engine.engine import Engine
from sluice.kv.manager import ResidentLease
from sluice.scheduler.cost import StepLoad
from sluice.scheduler.request import Request
from sluice.scheduler.scheduler import Scheduler
from sluice.scheduler.setup import SchedulerSetup
from sluice.scheduler.state import SchedulerState
from sluice.sim.runner import KnownAnswer
from sluice.sim.world import StepWork, WorldTimes
from sluice.types import CHUNKS_BY_TIME, Regime

LEAST = 2
"""Fewer steps are not worth the effort."""


class DecodingRow(NamedTuple):
    """A request that decodes."""

    request: Request
    lease: ResidentLease
    answer: KnownAnswer
    most: int
    """Steps before the one in which it ends, or its client leaves."""


class FastForward(NamedTuple):
    """Steps that were done."""

    ends: list[float]
    """When each ended."""
    ready_at: float
    """When the engine plans again."""


class FastForwarder:
    """Does several steps of one engine at once.

    Args:
        engine: of `setup`, over a `Scheduler`.
        times: of its steps.
        answer_of: returns the answer of a request, and the most tokens that its client reads; 0: all.
    """

    def __init__(
        self,
        engine: Engine,
        setup: SchedulerSetup,
        times: WorldTimes,
        answer_of: Callable[[int], tuple[KnownAnswer, int]],
    ) -> None:
        assert isinstance(engine.scheduler, Scheduler), "a leap changes the state of a scheduler"
        self._state: SchedulerState = engine.scheduler.state
        self._times = times
        self._answer_of = answer_of
        self._graph_rows = 0 if setup.pacing is None else setup.pacing.graph_rows
        self._page_size = setup.page_size
        limits, tiers = setup.limits, setup.tiers
        self._experts = limits.experts
        stores = tiers.write_policy != "never" and bool(tiers.host_pages or tiers.disk_pages)
        is_timed = bool(limits.itl_target) or limits.dynamic_chunking == CHUNKS_BY_TIME
        self.can_leap = engine.depth == 1 and not is_timed and limits.pipeline_stages == 1 and not stores
        self.can_leap &= self._state.drafter is None

    def leap(self, ready_at: float, until: float) -> FastForward | None:
        """Do as many steps as possible; None if there are too few.

        Args:
            ready_at: when the engine plans its next step, with nothing in flight.
            until: steps that end at this moment or later are not done; a message may come then.
        """
        state = self._state
        if not self.can_leap or not state.decoding or len(state.decoding) != len(state.requests) or state.computing:
            return None
        if ready_at >= until:
            return None
        rows = [self._row(request) for request in state.decoding.values()]
        most = min([row.most for row in rows])
        while most >= LEAST and sum([row.lease.missing(row.request.scheduled + most) for row in rows]) > (
            state.kv.pool.num_free
        ):
            most //= 2
        if most < LEAST:
            return None
        found = self._time(rows, most, ready_at, until)
        if found.ends:
            self._commit(rows, len(found.ends))
        return found

    def _row(self, request: Request) -> DecodingRow:
        answer, leaves_after = self._answer_of(request.id)
        lease = request.lease
        assert isinstance(lease, ResidentLease), f"request {request.id} decodes with {lease}"
        last = min(answer.num_tokens, leaves_after or answer.num_tokens)
        return DecodingRow(request, lease, answer, last - request.num_outputs - 1)

    def _time(self, rows: list[DecodingRow], most: int, ready_at: float, until: float) -> FastForward:
        """Draw the times of steps until one is not over in time. That one is to be drawn again."""
        count, times, ends = len(rows), self._times, list[float]()
        experts = self._experts.read(count)
        regime = Regime.GRAPH if count <= self._graph_rows else Regime.DECODE
        context = sum([row.request.scheduled for row in rows])
        for _ in range(most):
            if ready_at >= until:
                break
            context += count
            end = times.ends(StepWork(regime, StepLoad(count, count, context, experts=experts)), ready_at)
            if end >= until:
                times.undo()
                break
            ends.append(end)
            ready_at = times.turn_at(end, has_waited=True)
        return FastForward(ends, ready_at)

    def _commit(self, rows: list[DecodingRow], steps: int) -> None:
        """Move all requests on by so many tokens, and take and publish pages in the order of the steps."""
        state, size = self._state, self._page_size
        events: list[tuple[int, int, int]] = []
        for index, (request, lease, answer, _) in enumerate(rows):
            start = request.scheduled
            request.tokens.extend(answer.span(start + 1, steps))
            events += [(step, 0, index) for step in range(lease.capacity - start + 1, steps + 1, size)]
            events += [(step, 1, index) for step in range(size - start % size, steps + 1, size)]
            request.scheduled = request.computed = start + steps
        starts = [row.request.scheduled - steps for row in rows]
        for step, is_full, index in sorted(events):
            lease, end = rows[index].lease, starts[index] + step
            if is_full:
                lease.publish(rows[index].request.tokens, end)
            else:
                lease.extend(end)
        for _ in range(steps):
            state.reservation.decoded()
        state.step += steps
        state.left_waiting = False

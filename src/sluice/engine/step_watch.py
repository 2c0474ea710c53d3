"""Reports what steps did, while a subscriber watches: counts and times, and no token.

Nothing is kept and nothing is computed until `follow` turns it on.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

from sluice.engine.clock import micros_at
from sluice.engine.trace import StepTimes
from sluice.types import BatchPlan, BatchResult, Bound, ChunkSlice, Occupancy, Tier

REPORT_SECONDS = 0.25
"""Seconds between two reports while steps run: each costs the server a message."""
MOST_STEPS = 64
"""Most steps of one report."""
ONE_EACH = frozenset({1})
"""Numbers of tokens of ordinary rows."""


class ChunkSeen(NamedTuple):
    """A chunk of a prompt, or of tokens computed again, in one step."""

    request_id: int
    start: int
    length: int
    samples: bool
    """It ends what is known of its request, and brings the next token."""


class SliceSeen(NamedTuple):
    """A part of the work on a chunk that takes several steps."""

    request_id: int
    start: int
    length: int
    first: int
    stop: int
    """The work items from `first` up to this one, of `total`; where all of the context is on the device, layers."""
    total: int
    samples: bool
    """It completes the chunk, which brings the next token."""
    is_resident: bool
    """Whether all of the context is on the device."""


class StepSeen(NamedTuple):
    """One step. Times are microseconds of the engine's clock."""

    step: int
    began: int
    """When it began to compute, as well as the engine can know: steps run one after the other."""
    micros: int
    """How long it computed."""
    known: int
    """When its tokens were known to the engine."""
    bound_by: Bound
    failed: bool
    decodes: tuple[int, ...] | None
    """Requests that decoded, a token each. None: those of the step before, in the same report."""
    chunks: tuple[ChunkSeen, ...]
    slices: tuple[SliceSeen, ...]
    admitted: tuple[int, ...]
    """Requests that were given a slot, before their first chunk or after a preemption."""
    counts: tuple[tuple[int, int], ...]
    """Requests that got another number of tokens than the one that their row promises, and that number."""
    loads: int
    """Pages to be copied to the device."""
    stores: int
    """Pages to be copied to another tier."""


@dataclass(frozen=True, slots=True)
class StepsSeen:
    """Steps that ended since the report before, and how full the scheduler is behind them."""

    steps: tuple[StepSeen, ...]
    occupancy: Occupancy


class StepWatch:
    """Gathers steps and reports them, several at a time.

    Args:
        report: receives them.
    """

    def __init__(self, report: Callable[[StepsSeen], None]) -> None:
        self._report = report
        self._is_on = False
        self._steps: list[StepSeen] = []
        self._decodes: tuple[int, ...] | None = None
        """Requests that decoded in the step before, in this report."""
        self._reported_at = 0.0
        self._free_at = 0.0
        """When the step before had been computed."""

    def follow(self, is_on: bool) -> None:
        """Report the steps that end from now on, or none."""
        self._is_on = is_on
        self._steps.clear()
        self._decodes = None

    @property
    def has_steps(self) -> bool:
        """Steps have ended that were not reported."""
        return bool(self._steps)

    def is_due(self, now: float) -> bool:
        """Return whether they should be reported now, although steps continue."""
        late = now - self._reported_at >= REPORT_SECONDS or len(self._steps) >= MOST_STEPS
        return late and self.has_steps

    def ended(self, plan: BatchPlan, result: BatchResult | None, times: StepTimes) -> None:
        """Receive a step that ended; a result of None means that it failed as a whole."""
        if self._is_on:
            self._steps.append(self._seen(plan, result, times))

    def report(self, occupancy: Occupancy, now: float) -> None:
        """Report the steps that were not yet."""
        self._report(StepsSeen(tuple(self._steps), occupancy))
        self._steps.clear()
        self._decodes, self._reported_at = None, now

    def _seen(self, plan: BatchPlan, result: BatchResult | None, times: StepTimes) -> StepSeen:
        began, ended = self._busy(times)
        decodes = tuple([chunk.request_id for chunk in plan.chunks[: plan.num_decodes]])
        is_same, self._decodes = decodes == self._decodes, decodes
        offloaded = {part.chunk.request_id for part in plan.slices}
        loads = sum(copy.target is Tier.DEVICE for copy in plan.copies)
        return StepSeen(
            step=plan.step,
            began=micros_at(began),
            micros=micros_at(ended - began),
            known=micros_at(times.ended_at),
            bound_by=plan.bound_by,
            failed=result is None,
            decodes=None if is_same else decodes,
            chunks=tuple(
                ChunkSeen(chunk.request_id, chunk.start, chunk.length, chunk.samples)
                for chunk in plan.chunks[plan.num_decodes :]
                if chunk.request_id not in offloaded
            ),
            slices=tuple(map(_slice_seen, plan.slices)),
            admitted=tuple(new.request_id for new in plan.new_slots),
            counts=() if result is None else _other_counts(plan, result),
            loads=loads,
            stores=len(plan.copies) - loads,
        )

    def _busy(self, times: StepTimes) -> tuple[float, float]:
        """Return when a step was computed: at its launch (cpu), unless the engine had to wait for it longer."""
        waited = times.wait_seconds >= times.launch_seconds
        ended = times.ended_at if waited else times.launched_at + times.launch_seconds
        began = max(times.launched_at, self._free_at)
        self._free_at = max(began, ended)
        return began, self._free_at


def _slice_seen(part: ChunkSlice) -> SliceSeen:
    chunk = part.chunk
    samples = part.completes and chunk.samples
    return SliceSeen(
        chunk.request_id, chunk.start, chunk.length, part.first, part.stop, part.total, samples, part.is_resident
    )


def _other_counts(plan: BatchPlan, result: BatchResult) -> tuple[tuple[int, int], ...]:
    if set(map(len, result.token_ids)) <= ONE_EACH:
        return ()
    rows = (chunk for chunk in plan.chunks if chunk.samples)
    return tuple(
        (chunk.request_id, len(tokens))
        for chunk, tokens in zip(rows, result.token_ids, strict=False)
        if len(tokens) != 1
    )

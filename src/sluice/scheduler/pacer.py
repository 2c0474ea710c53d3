"""Pacer: chunks by time. A step takes as many prompt tokens as are predicted to end within the ITL target.

    with streams        the step's time, at the quantile, is within the strictest target of the requests that stream
    without streams     within `LONELY` times the target: a request that arrives waits for the step
    always              one quantum of prefill, so that no prompt waits for ever

A machine that is not known yet is approached in steps: no step plans more than twice the prefill that was seen in one
before. Where decodes exceed the target without any prefill, alone or as a part of a mixed step, it is infeasible: then
a step takes prefill for `INFEASIBLE_SHARE` of the time of its decodes, whatever the machine's speed of the moment, and
chunks stay as they are until decodes are clearly within the target again.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from math import sqrt
from typing import NamedTuple

from sluice.scheduler.batch import BatchBuilder
from sluice.scheduler.budget import UNLIMITED
from sluice.scheduler.cost import CostPrior, LearntCosts, Load, StepCost, dot
from sluice.scheduler.request import Request
from sluice.types import Bound, OffloadLimits, Pace, Regime, SchedulerLimits

QUANTUM = 8
"""Tokens: least prefill of a step, and granularity of chunks of a few pages. At most a page."""
WHOLE_PAGES = 4
"""Pages from which on chunks are cut to whole pages: a part of one would be a small share of them."""
LONELY = 2.0
INFEASIBLE_SHARE = 0.25
FEASIBLE_AGAIN = 0.9
"""Share of the target that decodes alone must be within to end an infeasible state."""


@dataclass(frozen=True, slots=True)
class Pacing:
    """What a pacer knows before its first step."""

    prior: CostPrior = field(default_factory=CostPrior)
    graph_rows: int = 0
    """Steps of at most so many decodes replay a captured graph."""
    steps_per_token: int = 1
    """Steps that a stream waits for one token: more than 1 if several are in flight and none looks ahead."""
    learnt: LearntPace | None = None


class LearntPace(NamedTuple):
    """All that a pacer has learnt."""

    costs: LearntCosts
    largest_mixed: int
    """Most prefill tokens of a step beside streams."""
    largest: int
    """Of any step."""


class Planned(NamedTuple):
    """A step in flight."""

    step: int
    regime: Regime
    load: Load
    prefill: int
    """Tokens of prefill, and those that offloaded work was counted as."""
    has_streams: bool


class Pacer:
    """Says how much prefill a step takes, and learns from how long it took.

    Args:
        limits: with an ITL target.
        page_size: tokens.
    """

    def __init__(self, limits: SchedulerLimits, page_size: int, pacing: Pacing) -> None:
        self._floor = limits.itl_target
        self._quantile = limits.itl_quantile
        self._page_size = page_size
        self._pacing = pacing
        self.quantum = min(QUANTUM, page_size)
        learnt = pacing.learnt
        self.cost = StepCost(pacing.prior, None if learnt is None else learnt.costs)
        self._largest_mixed, self._largest = (0, 0) if learnt is None else learnt[1:]
        self._planned: deque[Planned] = deque()
        self.is_infeasible = False

    def learnt(self) -> LearntPace:
        """Return what another pacer is to go on from."""
        return LearntPace(self.cost.learnt(), self._largest_mixed, self._largest)

    def budget(self, batch: BatchBuilder, limits: SchedulerLimits, streams: Iterable[Request]) -> TargetBudget:
        """Return the budget of a step that is about to be filled.

        Args:
            streams: the requests that wait for a token.
        """
        targets = [max(request.itl_target, self._floor) for request in streams]
        target = min(targets) / self._pacing.steps_per_token if targets else self._floor * LONELY
        tokens = limits.chunked_prefill_size
        return TargetBudget(self, batch, tokens, self._page_size, target, has_streams=bool(targets))

    def limit(self, batch: BatchBuilder, target: float) -> float:
        """Return the time that a step with these decodes may take, at the machine's usual speed."""
        regime = self.regime(batch, has_prefill=True)
        if batch.num_decodes:
            # A step that holds any prefill at all may cost more than the decodes that it was added to.
            alone = max(self._decodes_alone(batch), self.cost.fitted(regime, batch.load))
            self.is_infeasible = alone > (target * FEASIBLE_AGAIN if self.is_infeasible else target)
        if batch.num_decodes and self.is_infeasible:
            return (1 + INFEASIBLE_SHARE) * self.cost.fitted(regime, batch.load)
        return target / (self.cost.speed(regime) * self.cost.margin(regime, self._quantile))

    def _decodes_alone(self, batch: BatchBuilder) -> float:
        return self.cost.fitted(self.regime(batch, has_prefill=False), batch.load)

    def ramp(self, *, has_streams: bool) -> int:
        """Return the most prefill tokens of a step on a machine that has been seen with so many."""
        return 2 * max(self.quantum, self._largest_mixed if has_streams else self._largest)

    def regime(self, batch: BatchBuilder, *, has_prefill: bool) -> Regime:
        """Return the kind of a step that holds the decodes of a batch."""
        if has_prefill:
            return Regime.MIXED if batch.num_decodes else Regime.PREFILL
        return Regime.GRAPH if batch.num_decodes <= self._pacing.graph_rows else Regime.DECODE

    def planned(self, step: int, batch: BatchBuilder, target: float, prefill: int, *, has_streams: bool) -> Pace:
        """Note a step that was planned, and return what it is expected to take.

        Args:
            target: microseconds.
            prefill: tokens that the step was charged, offloaded work included.
            has_streams: whether a request waits for a token.
        """
        regime = self.regime(batch, has_prefill=batch.has_prefill)
        predicted = self.cost.predict(regime, batch.load)
        # An offloaded work item goes at any cost, which may be guessed: it is no reason to leap.
        prefill = min(prefill, self.ramp(has_streams=has_streams))
        self._planned.append(Planned(step, regime, batch.load, prefill, has_streams))
        margin = self.cost.margin(regime, self._quantile)
        infeasible = self.is_infeasible and batch.num_decodes > 0
        if infeasible and not batch.has_prefill:
            infeasible = self._decodes_alone(batch) > target
        return Pace(regime, round(target), round(predicted), round(predicted * margin), infeasible)

    def failed(self, step: int) -> None:
        """Forget a step that failed."""
        self._pop(step)

    def ended(self, step: int, micros: int) -> None:
        """Learn from the oldest step in flight.

        Args:
            micros: measured; 0: it was not.
        """
        planned = self._pop(step)
        if planned is None:
            return
        if micros > 0 and any(planned.load):
            self.cost.observe(planned.regime, planned.load, micros)
        self._largest = max(self._largest, planned.prefill)
        if planned.has_streams:
            self._largest_mixed = max(self._largest_mixed, planned.prefill)

    def _pop(self, step: int) -> Planned | None:
        """Return the oldest step in flight, or None if `step` held copies alone."""
        return self._planned.popleft() if self._planned and self._planned[0].step == step else None


class TargetBudget:
    """As many tokens as are predicted to keep a step within its time (see `ChunkBudget`).

    What the batch holds is part of the step's time, so a chunk that was added has been paid for.

    Args:
        tokens: most prefill tokens of the step.
        target: microseconds.
        has_streams: whether a request waits for its next token.
    """

    def __init__(
        self, pacer: Pacer, batch: BatchBuilder, tokens: int, page_size: int, target: float, *, has_streams: bool
    ) -> None:
        self._pacer = pacer
        self._batch = batch
        self._tokens = tokens
        self._page_size = page_size
        self._target = target
        self._has_streams = has_streams
        self._micros: float | None = None
        """Time of the step at the machine's usual speed; None before all decodes are in the batch."""
        self._taken = 0
        self.bound = Bound.CHUNKED_PREFILL_SIZE

    def pace(self, step: int) -> Pace:
        """Note that the step was planned, and return what it is expected to take."""
        self._limit()
        return self._pacer.planned(step, self._batch, self._target, self._taken, has_streams=self._has_streams)

    def left(self, start: int) -> int:
        most, within = self._tokens - self._taken, self._within(start)
        self.bound = Bound.ITL_TARGET if within < most else Bound.CHUNKED_PREFILL_SIZE
        return max(0, min(most, within))

    def left_to_last(self, start: int) -> int:
        return max(0, min(self._tokens - self._taken + self._page_size, self._within(start)))

    def _within(self, start: int) -> int:
        """Return the tokens from position `start` that are predicted to keep the step within its time."""
        ramp = self._pacer.ramp(has_streams=self._has_streams) - self._taken
        costs = self._costs()
        fitting = tokens_within(costs, self._limit() - dot(costs, (1, *self._batch.load)) - costs[2], start)
        least = 0 if self._taken else self._pacer.quantum
        return max(least, min(ramp, fitting))

    def tokens_at_depth(self, tokens: int, start: int) -> int:
        if tokens >= self._tokens:
            return tokens
        costs = self._costs()
        time = costs[1] * tokens + costs[4] * (tokens * (tokens + 1) / 2)
        return max(self._pacer.quantum, tokens_within(costs, time, start))

    def cut(self, start: int, wanted: int) -> int:
        end = start + wanted
        size = self._page_size if wanted >= WHOLE_PAGES * self._page_size else self._pacer.quantum
        return max(0, end - end % size - start)

    def take(self, start: int, length: int) -> None:
        self._taken += length

    def share(self) -> None:
        """Do nothing: what the first prompt takes is bounded by time already."""

    def priced(self, limits: OffloadLimits, page_size: int) -> OffloadLimits:
        """Return the limits of offloaded work with costs as they were measured, in tokens that take as long."""
        costs = self._costs()
        if costs[1] <= 0:
            return limits
        pair, byte = (cost / costs[1] / limits.num_layers for cost in (costs[4], costs[5]))
        return replace(limits, pair_cost=pair, load_cost=byte * limits.page_bytes / page_size)

    def _limit(self) -> float:
        """Return the time of the step at the machine's usual speed. It is asked for when all decodes are planned."""
        if self._micros is None:
            self._micros = self._pacer.limit(self._batch, self._target)
        return self._micros

    def _costs(self) -> tuple[float, ...]:
        return self._pacer.cost.costs(self._pacer.regime(self._batch, has_prefill=True))


def tokens_within(costs: tuple[float, ...], micros: float, start: int) -> int:
    """Return the most tokens of a prompt from position `start` that take no longer than `micros`.

    n tokens take n (token + pair (start + 1/2)) + pair n n / 2.
    """
    if micros <= 0:
        return 0
    linear = costs[1] + costs[4] * (start + 0.5)
    below = linear + sqrt(linear * linear + 2 * costs[4] * micros)
    return min(UNLIMITED, int(2 * micros / below)) if below * UNLIMITED > 2 * micros else UNLIMITED

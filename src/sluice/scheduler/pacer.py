"""Pacer: chunks by time. A step takes as many prompt tokens as are predicted to end within the ITL target.

    with streams        the step's time, at the quantile, is within the strictest target of the requests that stream
    without streams     within `LONELY` times the target: a request that arrives waits for the step
    always              a quantum of prefill, and prefill for `LEAST_SHARE` of the time of the step's decodes

A machine that is not known yet is approached in steps: no step plans more than twice the prefill that was seen in one
before. A target is infeasible if even the smallest of these steps is predicted to take longer. Then steps stay the
smallest, whatever the machine's speed of the moment. So the prefill of a step never falls when the target rises.

Where all steps beside streams are the smallest, their times do not tell what a token costs from what a step costs, and
a token that seems too dear would keep them so. So one in `PROBE_AFTER` has two quanta, if one is within the target.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from math import sqrt
from typing import NamedTuple

from sluice.scheduler.batch import BatchBuilder
from sluice.scheduler.budget import UNLIMITED
from sluice.scheduler.cost import CostPrior, LearntCosts, StepCost, StepLoad, dot
from sluice.scheduler.request import Request
from sluice.types import Bound, OffloadLimits, PredictedStep, Regime, SchedulerLimits

QUANTUM = 8
"""Tokens: least prefill of a step, and granularity of chunks of a few pages. At most a page."""
WHOLE_PAGES = 4
"""Pages from which on chunks are cut to whole pages: a part of one would be a small share of them."""
LONELY = 2.0
AUTO_AFTER = 8
"""Steps of decodes after which a target that follows them is known."""
AUTO_AFTER_MIXED = 32
"""Steps of decodes and prefill after which it is taken from what these say of decodes. A server that is busy from its
first step on may have no others."""
AUTO_CHANGE = 1.25
"""Factor by which the time of decodes must have changed for the target to follow, so that it is steady."""
STEADY_SHARE = 4
"""Part of the most prefill of a step that steps have before the target is known."""
LEAST_SHARE = 0.25
TRIED = 16
"""Steps with layers of a chunk, or with whole chunks, after which it is known what they take."""
TRIED_AGAIN = 256
"""Steps with prompts, one after the other and none of them with layers, after which these are tried again."""
PROBE_AFTER = 32
"""Steps beside streams, one after the other, with about one quantum each."""


@dataclass(frozen=True, slots=True)
class Pacing:
    """What a pacer knows before its first step."""

    prior: CostPrior = field(default_factory=CostPrior)
    graph_rows: int = 0
    """Steps of at most so many decodes replay a captured graph."""
    steps_per_token: int = 1
    """Steps that a stream waits for one token: more than 1 if several are in flight and none looks ahead."""
    learnt: LearntPacing | None = None


class LearntPacing(NamedTuple):
    """All that a pacer has learnt."""

    costs: LearntCosts
    largest_mixed: int
    """Most prefill tokens of a step beside streams."""
    largest: int
    """Most prefill tokens of any step."""


class _PlannedStep(NamedTuple):
    """A step in flight."""

    step: int
    regime: Regime
    load: StepLoad
    decodes: StepLoad
    """Part of the load."""
    prefill: int
    """Tokens of prefill, and those that offloaded work was counted as."""
    has_streams: bool


class StepLimit(NamedTuple):
    """What bounds the prefill of a step."""

    micros: float
    """Time of the step at the machine's usual speed."""
    least: int
    """Tokens of prefill that it has in any case."""


class Pacer:
    """Says how much prefill a step takes, and learns from how long it took.

    Args:
        limits: with an ITL target.
        page_size: tokens.
    """

    def __init__(self, limits: SchedulerLimits, page_size: int, pacing: Pacing) -> None:
        self._decode_steps = max(0, -limits.itl_target)
        """Steps of decodes that the target lasts; 0: it is a time."""
        self._floor = max(0, limits.itl_target)
        """Strictest target, in microseconds; 0: it is to follow decodes, and none were seen."""
        self._quantile = limits.itl_quantile
        self._page_size = page_size
        self._pacing = pacing
        self.quantum = min(QUANTUM, page_size)
        learnt = pacing.learnt
        self.cost = StepCost(pacing.prior, None if learnt is None else learnt.costs)
        self._largest_mixed, self._largest = (0, 0) if learnt is None else learnt[1:]
        self._planned: deque[_PlannedStep] = deque()
        self._whole_steps = 0
        """Steps with prompts one after the other that had no layers."""
        self._equal_steps = 0
        """Mixed steps one after the other that had about one quantum of prefill."""
        self._follow(StepLoad(1, 1, 1))

    def learnt(self) -> LearntPacing:
        """Return what another pacer is to continue from."""
        return LearntPacing(self.cost.learnt(), self._largest_mixed, self._largest)

    def budget(self, batch: BatchBuilder, limits: SchedulerLimits, streams: Iterable[Request]) -> TargetBudget:
        """Return the budget of a step that is about to be filled.

        Args:
            streams: the requests that wait for a token.
        """
        strictest = min([request.itl_target for request in streams], default=-1)
        has_streams = strictest >= 0
        target = max(strictest, self._floor) / self._pacing.steps_per_token if has_streams else self._floor * LONELY
        tokens = limits.chunked_prefill_size
        if not self._floor:
            target, tokens = 0, max(self.quantum, tokens // STEADY_SHARE)
        return TargetBudget(self, batch, tokens, self._page_size, target, has_streams=has_streams)

    def limit(self, batch: BatchBuilder, regime: Regime, target: float) -> StepLimit:
        """Return how much prefill a step with these decodes may have.

        Args:
            regime: of the step with prefill.
            target: microseconds; 0: it is not known.
        """
        allowed = self.limit_of(regime, target) if target else float(UNLIMITED)
        if not batch.num_decodes:
            return StepLimit(allowed, self.quantum)
        load = batch.decodes
        base = self.cost.fitted(regime, load)
        least = LEAST_SHARE * self.cost.fitted(self._of_decodes(load), load)
        may_probe = self._equal_steps >= PROBE_AFTER
        if may_probe and self.cost.fitted(regime, load.with_chunk(0, self.quantum)) <= allowed:
            return StepLimit(max(allowed, base + least), 2 * self.quantum)
        return StepLimit(max(allowed, base + least), self.quantum)

    def limit_of(self, regime: Regime, target: float) -> float:
        """Return the time that a step of a kind may take at the machine's usual speed to be within the target."""
        return target / (self.cost.speed(regime) * self.cost.margin(regime, self._quantile))

    def ramp(self, *, has_streams: bool) -> int:
        """Return the most prefill tokens of a step on a machine that has been seen with so many."""
        return 2 * max(self.quantum, self._largest_mixed if has_streams else self._largest)

    def regime(self, batch: BatchBuilder, *, has_prefill: bool) -> Regime:
        """Return the kind of a step that holds the decodes of a batch."""
        if batch.has_layers:
            return self.regime_of_layers(batch)
        if has_prefill:
            return Regime.MIXED if batch.num_decodes else Regime.PREFILL
        return self._of_decodes(batch.decodes)

    def regime_of_layers(self, batch: BatchBuilder) -> Regime:
        """Return the kind of a step that holds the decodes of a batch, and some layers of a chunk."""
        return Regime.SLICED if batch.num_decodes else Regime.LAYERS

    def tried(self, batch: BatchBuilder) -> bool | None:
        """Return whether layers of a chunk are to be tried beside the decodes of a batch, or else whole chunks, since
        it is not known, or not lately, what they take; None: both are known."""
        if self.cost.num_steps(self.regime_of_layers(batch)) < TRIED or self._whole_steps >= TRIED_AGAIN:
            return True
        whole = Regime.MIXED if batch.num_decodes else Regime.PREFILL
        return False if self.cost.num_steps(whole) < TRIED else None

    def _of_decodes(self, decodes: StepLoad) -> Regime:
        """Return the kind of a step of decodes alone; those with drafts replay no graph."""
        is_graph = decodes.rows <= self._pacing.graph_rows and decodes.tokens <= decodes.rows
        return Regime.GRAPH if is_graph else Regime.DECODE

    def planned(
        self, step: int, batch: BatchBuilder, target: float, prefill: int, *, has_streams: bool
    ) -> PredictedStep:
        """Note a step that was planned, and return what it is expected to take.

        Args:
            target: microseconds.
            prefill: tokens that the step was charged, offloaded work included.
            has_streams: whether a request waits for a token.
        """
        regime, load = self.regime(batch, has_prefill=batch.has_prefill), batch.load
        predicted = self.cost.predict(regime, load)
        if regime is Regime.MIXED:
            is_smallest = self.quantum < 2 * prefill < 4 * self.quantum
            self._equal_steps = self._equal_steps + 1 if is_smallest else 0
        if batch.has_prefill:
            self._whole_steps = 0 if batch.has_layers else self._whole_steps + 1
        # An offloaded work item goes at any cost, which may be guessed: it is no reason to leap.
        prefill = min(prefill, self.ramp(has_streams=has_streams))
        self._planned.append(_PlannedStep(step, regime, load, batch.decodes, prefill, has_streams))
        # Nothing but the smallest step is planned if it is predicted to take longer, or else an offloaded item.
        is_infeasible = batch.num_decodes > 0 and predicted > target > 0 and not batch.has_offloaded
        at_quantile = predicted * self.cost.margin(regime, self._quantile)
        return PredictedStep(regime, round(target), round(predicted), round(at_quantile), is_infeasible)

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
            if planned.decodes.rows:
                self._follow(planned.decodes)
        self._largest = max(self._largest, planned.prefill)
        if planned.has_streams:
            self._largest_mixed = max(self._largest_mixed, planned.prefill)

    def _follow(self, decodes: StepLoad) -> None:
        """Set a target that follows decodes to what these take, if that has changed much."""
        regime = self._of_decodes(decodes)
        if self.cost.num_steps(regime) < AUTO_AFTER:
            beside = max((Regime.MIXED, Regime.SLICED), key=self.cost.num_steps)
            regime = beside if self.cost.num_steps(beside) >= AUTO_AFTER_MIXED else regime
        if not self._decode_steps or self.cost.num_steps(regime) < AUTO_AFTER:
            return
        exact = self._decode_steps * self._pacing.steps_per_token * self.cost.fitted(regime, decodes)
        if not self._floor / AUTO_CHANGE <= exact <= self._floor * AUTO_CHANGE:
            self._floor = two_digits(exact)

    def _pop(self, step: int) -> _PlannedStep | None:
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
        self.pacer = pacer
        self.batch = batch
        self._tokens = tokens
        self._page_size = page_size
        self.target = target
        self._has_streams = has_streams
        self._limits: tuple[StepLimit, tuple[float, ...]] | None = None
        """The limit and the costs of its parts; None before all decodes are in the batch."""
        self._taken = self._taken_by_streams = 0
        self._spent: float | None = None
        """Time of what the batch holds; None: it holds more since it was asked for."""
        self.bound = Bound.CHUNKED_PREFILL_SIZE

    def pace(self, step: int) -> PredictedStep:
        """Note that the step was planned, and return what it is expected to take."""
        return self.pacer.planned(step, self.batch, self.target, self._taken, has_streams=self._has_streams)

    @property
    def quantum(self) -> int:
        return self.pacer.quantum

    def left(self, start: int) -> int:
        most, within = self._tokens - self._taken, self._within(start)
        self.bound = Bound.ITL_TARGET if within < most else Bound.CHUNKED_PREFILL_SIZE
        return max(0, min(most, within))

    def left_to_last(self, start: int) -> int:
        return max(0, min(self._tokens - self._taken + self._page_size, self._within(start)))

    def _within(self, start: int) -> int:
        """Return the tokens from position `start` that are predicted to keep the step within its time."""
        limit, costs = self.limit()
        if self._spent is None:
            self._spent = dot(costs, (1, *self.batch.load))
        ramp = self.pacer.ramp(has_streams=self._has_streams) - self._taken
        fitting = min(ramp, tokens_within(costs, limit.micros - self._spent - costs[2], start))
        return max(fitting, limit.least if self._taken == self._taken_by_streams else 0)

    def room_for_drafts(self, *, beside_prompts: bool) -> int:
        """Return the drafts that are predicted to keep a step of the decodes planned so far within its time.

        Args:
            beside_prompts: leave half of what decodes leave to prompts.
        """
        if not self.target:
            return UNLIMITED
        pacer, batch = self.pacer, self.batch
        regime = Regime.MIXED if beside_prompts else Regime.DECODE
        allowed = pacer.limit_of(regime, self.target)
        costs = pacer.cost.costs(regime)
        left = allowed - dot(costs, (1, *batch.load))
        return tokens_within(costs, left / 2 if beside_prompts else left, 0)

    def left_to_layers(self) -> int:
        """Return the tokens that layers of a chunk may cost the step, however little time they take."""
        return min(self._tokens, self.pacer.ramp(has_streams=self._has_streams)) - self._taken

    def tokens_at_depth(self, tokens: int, start: int) -> int:
        if tokens >= self._tokens:
            return tokens
        costs = self.limit()[1]
        time = costs[1] * tokens + costs[4] * (tokens * (tokens + 1) / 2)
        return max(self.pacer.quantum, tokens_within(costs, time, start))

    def cut(self, start: int, wanted: int) -> int:
        end = start + wanted
        size = self._page_size if wanted >= WHOLE_PAGES * self._page_size else self.pacer.quantum
        return max(0, end - end % size - start)

    def take(self, start: int, length: int) -> None:
        self._taken += length
        self._spent = None

    def end_forced(self) -> None:
        self._taken_by_streams = self._taken
        self._tokens = max(self._tokens, self._taken + self.pacer.quantum)

    def share(self) -> None:
        """Do nothing: what the first prompt takes is bounded by time already."""

    def priced(self, limits: OffloadLimits, page_size: int) -> OffloadLimits:
        """Return the limits of offloaded work with costs as they were measured, in tokens that take as long."""
        costs = self.limit()[1]
        if costs[1] <= 0:
            return limits
        pair, byte = (cost / costs[1] / limits.num_layers for cost in (costs[4], costs[5]))
        return replace(limits, pair_cost=pair, load_cost=byte * limits.page_bytes / page_size)

    def limit(self) -> tuple[StepLimit, tuple[float, ...]]:
        """Return what bounds the step, and the costs of its parts. It is asked for when all decodes are planned."""
        if self._limits is None:
            regime = self.pacer.regime(self.batch, has_prefill=True)
            limit = self.pacer.limit(self.batch, regime, self.target)
            self._limits = limit, self.pacer.cost.costs(regime)
        return self._limits


def two_digits(micros: float) -> int:
    """Return a time of at least a microsecond, rounded to two digits."""
    unit = 1
    while micros >= 100 * unit:
        unit *= 10
    return max(1, round(micros / unit)) * unit


def tokens_within(costs: tuple[float, ...], micros: float, start: int) -> int:
    """Return the most tokens of a prompt from position `start` that take no longer than `micros`.

    n tokens take n (token + pair (start + 1/2)) + pair n n / 2.
    """
    if micros <= 0:
        return 0
    linear = costs[1] + costs[4] * (start + 0.5)
    below = linear + sqrt(linear * linear + 2 * costs[4] * micros)
    return min(UNLIMITED, int(2 * micros / below)) if below * UNLIMITED > 2 * micros else UNLIMITED

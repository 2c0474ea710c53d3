"""The model of the machine that a simulation runs on: how long steps take, and what is between them.

A step takes what frozen costs say of its load (`scheduler.cost`), times a ratio of measured to modelled time, and what
it stalled. Both come from a real run, in blocks of consecutive steps of one kind, so that slow steps come together
as they did there: a model of means alone misses the high percentiles of the time between tokens. These costs are the
machine's. A pacer inside the simulation starts cold and learns its own from the steps that it sees.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from sluice.scheduler.batch import load_of_layers
from sluice.scheduler.cost import MIN_MICROS, NUM, StepLoad, dot
from sluice.scheduler.offloading import load_of
from sluice.scheduler.setup import SchedulerSetup
from sluice.types import BatchPlan, Regime

BLOCK = 64
"""Consecutive steps of one kind of the real run whose residuals are used together."""


STAND_INS: Mapping[Regime, tuple[Regime, ...]] = {
    Regime.DECODE: (Regime.MIXED, Regime.GRAPH, Regime.PREFILL, Regime.SLICED, Regime.LAYERS),
    Regime.GRAPH: (Regime.DECODE, Regime.MIXED, Regime.PREFILL, Regime.SLICED, Regime.LAYERS),
    Regime.MIXED: (Regime.PREFILL, Regime.SLICED, Regime.DECODE, Regime.GRAPH, Regime.LAYERS),
    Regime.PREFILL: (Regime.MIXED, Regime.LAYERS, Regime.DECODE, Regime.GRAPH, Regime.SLICED),
    Regime.SLICED: (Regime.MIXED, Regime.LAYERS, Regime.PREFILL, Regime.DECODE, Regime.GRAPH),
    Regime.LAYERS: (Regime.PREFILL, Regime.SLICED, Regime.MIXED, Regime.DECODE, Regime.GRAPH),
}
"""Kinds of steps that stand for one that was not measured, the most alike first."""
WITH_PROMPTS = (Regime.MIXED, Regime.PREFILL)
"""Kinds that run the same kernels: steps of one help to describe the other, if it has few."""
WITH_LAYERS = (Regime.SLICED, Regime.LAYERS)
"""Kinds with layers of a chunk. A world that was measured without any has none of their costs."""


def kinds_of(measured: Iterable[Regime]) -> dict[Regime, tuple[Regime, ...]]:
    """Return the kinds of measured steps that each kind is described by: itself; if it has less than a block of them,
    the one with the same kernels, too; and if there are none of these, the kind most alike.

    Args:
        measured: the kind of each measured step; at least one.
    """
    counts = Counter(measured)

    def kinds(regime: Regime) -> tuple[Regime, ...]:
        own = WITH_PROMPTS if regime in WITH_PROMPTS and counts[regime] < BLOCK else (regime,)
        return tuple(each for each in own if counts[each]) or next(
            (each,) for each in STAND_INS[regime] if counts[each]
        )

    return {regime: kinds(regime) for regime in Regime}


class StepWork(NamedTuple):
    """The kind of a step, and what it has to do."""

    regime: Regime
    load: StepLoad


def work_of(plan: BatchPlan, setup: SchedulerSetup) -> StepWork:
    """Return what a plan has to do, as the pacer counts it."""
    own, num_decodes = plan.whole_chunks, plan.num_decodes
    context = sum([start + 1 for _, _, start, *_ in own[:num_decodes]])
    drafts = sum([chunk.num_drafts for chunk in own[:num_decodes]]) if setup.limits.num_draft_tokens else 0
    tokens, pairs = num_decodes + drafts, 0
    for chunk in own[num_decodes:]:
        length = chunk.length
        tokens += length
        pairs += length * chunk.start + length * (length + 1) // 2
    experts = setup.limits.experts
    load = StepLoad(tokens, len(own), context + drafts, pairs, experts=experts.read(tokens))
    for piece in plan.slices:
        if piece.is_resident:
            load = load.plus(load_of_layers(piece.chunk, (piece.stop - piece.first) / piece.total, experts))
            continue
        assert setup.offload is not None, "slices without limits of offloading"
        load = load.plus(load_of(setup.offload, piece, setup.page_size))
    if any(piece.is_resident for piece in plan.slices):
        return StepWork(Regime.SLICED if num_decodes else Regime.LAYERS, load)
    if len(own) > num_decodes or plan.slices:
        return StepWork(Regime.MIXED if num_decodes else Regime.PREFILL, load)
    graph_rows = 0 if setup.pacing is None else setup.pacing.graph_rows
    return StepWork(Regime.GRAPH if num_decodes <= graph_rows and not drafts else Regime.DECODE, load)


class Residual(NamedTuple):
    """What a step of a real run took beside its modelled time."""

    regime: Regime
    ratio: float
    """Measured over modelled time."""
    gap: float | None
    """Seconds from its end to the planning of the next one; None: the engine had nothing to do then."""
    stall: float = 0.0
    """Seconds beside: the machine did something else, however large the step was."""


@dataclass(frozen=True, slots=True)
class CopyRates:
    """What copies with the disk take, in seconds. Those with the host end with their step."""

    latency: float = 0.0002
    """Seconds of latency for the copies of one plan."""
    token: float = 1e-4
    """Seconds for the KV of a token: those of a model of 100 kB a token, on a disk of 1 GB/s."""


@dataclass(frozen=True, slots=True)
class World:
    """A machine with a model on it.

    Raises:
        ValueError: costs that cannot be.
    """

    costs: Mapping[Regime, tuple[float, ...]]
    """Microseconds of a step, a token, a row, a key, a pair, a byte and an expert, as `StepCost.costs` gives them; the
    last one may be missing. Kinds of steps with layers of a chunk may be missing."""
    residuals: tuple[Residual, ...] = ()
    """Residuals of a real run's steps, in their order; none: every step takes what is modelled."""
    gap: float = 0.0
    """Seconds between steps for which no residual gives them."""
    intake: float = 0.0
    """Seconds from the arrival of a request to when an idle engine takes it."""
    copies: CopyRates = field(default_factory=CopyRates)

    def __post_init__(self) -> None:
        whole = {regime: (*each, 0.0) if len(each) == NUM - 1 else each for regime, each in self.costs.items()}
        object.__setattr__(self, "costs", whole)
        for regime in Regime:
            found = self.costs.get(regime)
            if found is None and regime in WITH_LAYERS:
                continue
            if found is None or len(found) != NUM or not all(0 <= each < float("inf") for each in found):
                raise ValueError(f"the costs of {regime} steps must be {NUM} numbers of at least 0, got {found}")
        for each in self.residuals:
            seconds = each.stall + (each.gap or 0.0)
            if not 0 < each.ratio < float("inf") or not 0 <= seconds < float("inf") or each.stall < 0:
                raise ValueError(f"a ratio must be above 0, gap and stall at least 0, got {each}")
        if not (0 <= self.gap < float("inf") and 0 <= self.intake < float("inf")):
            raise ValueError(f"gap and intake must be at least 0 seconds, got {self.gap} and {self.intake}")

    def modelled(self, work: StepWork) -> float:
        """Return the seconds that a step takes by the costs alone."""
        regime = work.regime if work.regime in self.costs else STAND_INS[work.regime][0]
        return max(dot(self.costs[regime], (1, *work.load)), MIN_MICROS) / 1e6


class WorldTimes:
    """Times of a `World` (see `loop.SimulatedTimes`), with residuals drawn in blocks.

    Args:
        seed: equal seeds, equal draws.
    """

    def __init__(self, world: World, setup: SchedulerSetup, seed: int = 0) -> None:
        self._world = world
        self._setup = setup
        self._blocks = _blocks_of(world.residuals, seed) if world.residuals else {}
        self._latest: _Blocks | None = None
        self._gap = world.gap

    def ends_at(self, plan: BatchPlan, now: float, free_at: float) -> float:
        begins_at = max(now, free_at)
        if not plan.chunks and not plan.slices:
            return begins_at  # copies alone: the model does not run
        return self.ends(work_of(plan, self._setup), begins_at)

    def ends(self, work: StepWork, begins_at: float) -> float:
        """Return when a step ends, and draw the time to the next one."""
        seconds = self._world.modelled(work)
        if self._blocks:
            self._latest = self._blocks[work.regime]
            drawn = self._latest.next()
            seconds = seconds * drawn.ratio + drawn.stall
            self._gap = self._world.gap if drawn.gap is None else drawn.gap
        return begins_at + seconds

    def undo(self) -> None:
        """Take the latest residual back: the next step of its kind has it."""
        if self._latest is not None:
            self._latest.undo()

    def turn_at(self, now: float, *, has_waited: bool) -> float:
        return now + self._gap if has_waited else now


def _blocks_of(residuals: Sequence[Residual], seed: int) -> dict[Regime, _Blocks]:
    """Return where each kind of step has its residuals from: its own ones, and those of others where these are few.

    Kinds are drawn separately, so that a slow step is drawn as often as it occurred, however many steps of other kinds
    were around it.
    """
    kinds = kinds_of(each.regime for each in residuals)
    own = {regime: [each for each in residuals if each.regime in kinds[regime]] for regime in Regime}
    return {regime: _Blocks(found, random.Random(f"{seed} {regime}")) for regime, found in own.items()}


class _Blocks:
    """Draws residuals: a block of consecutive ones after the other, in random order and each once before any of them
    again, so that a simulation as long as the real run has all of its slow steps."""

    def __init__(self, residuals: Sequence[Residual], rng: random.Random) -> None:
        self._residuals = residuals
        self._rng = rng
        self._at = self._left = 0
        self._starts: list[tuple[int, int]] = []
        """Starts of blocks that are left, with their lengths."""

    def next(self) -> Residual:
        count = len(self._residuals)
        if not self._left:
            if not self._starts:
                shift = self._rng.randrange(count)
                self._starts = [((shift + at) % count, min(BLOCK, count - at)) for at in range(0, count, BLOCK)]
                self._rng.shuffle(self._starts)
            self._at, self._left = self._starts.pop()
        found = self._residuals[self._at % count]
        self._at, self._left = self._at + 1, self._left - 1
        return found

    def undo(self) -> None:
        """Take the latest one back."""
        self._at, self._left = self._at - 1, self._left + 1

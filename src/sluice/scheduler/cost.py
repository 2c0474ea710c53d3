"""StepCost: how long a step takes, learnt from the steps that ran.

A step's time is taken to be a sum of non-negative parts: one for the step itself, and one for each token, row, key that
decodes read, pair of a query and a key of prompts, byte loaded for offloaded contexts, and expert that is read. Steps
of different kinds (`Regime`) have coefficients of their own, since they run different kernels.

A step of few tokens reads few experts of a mixture of experts, and one of many tokens reads all: the experts that are
read rise with the tokens and flatten, which no part for each token and for the step could follow.

Coefficients minimise decayed squares of relative errors, by coordinate descent within the non-negative numbers, and
are drawn to a prior that is scaled to what was measured: so only the proportions of the prior matter, and only until
there are measurements. Those of mixed steps are drawn to what steps of decodes and of prefill alone have shown: where
all chunks are equal, tokens and rows of mixed steps rise together, and their times do not tell them apart. A faster
average of measured over fitted time follows a machine whose speed changes.

The arithmetic is +, -, *, / and comparisons of floats alone, each rounded as IEEE 754 says and in a fixed order: the
same observations give the same bits on every machine, so a recorded run plans the same when it is replayed.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil
from typing import NamedTuple

from sluice.types import DENSE, ExpertCounts, Regime

NUM = 7
DECAY = 0.99
"""Share of an observation's weight that stays with each later one of its regime: about a hundred count."""
PRIOR_WEIGHT = 0.02
"""Weight of the scaled prior, in observations."""
SWEEPS = 2
"""Sweeps of coordinate descent with each observation. They start from the last result."""
GAIN_RATE = 0.35
"""Weight of the latest step in the machine's speed."""
GAIN_CLIP = 3.0
"""One step moves the speed as if it had taken at most this many times what was predicted: a lone pause is no trend."""
FASTEST = 3.0
"""Nor is a step learnt to have taken less than this part of what was predicted. Errors are relative, so a single step
that was measured too short would weigh as much as all others."""
KEPT_RATIOS = 100
UNSEEN_RATIOS = tuple(0.7 + 0.03 * index for index in range(21))
"""Stand for ratios of measured to predicted time before there are some: from 0.7 to 1.3."""
WARM_UP = 3
"""First observations of a regime, whose predictions came from the prior and say nothing about the spread."""
MIN_MARGIN, MAX_MARGIN = 1.0, 3.0
MIN_MICROS = 1.0
"""No step is predicted to take less, even if all that it consists of was fitted to cost nothing."""


UNKNOWN: tuple[float | None, ...] = (None,) * NUM


class StepLoad(NamedTuple):
    """What a step has to do, in counts."""

    tokens: float = 0
    """Input tokens, decodes included. Offloaded work counts with its share of the layers."""
    rows: float = 0
    context: float = 0
    """Keys that decodes read."""
    pairs: float = 0
    """Pairs of a query and a key of prompts."""
    loaded: float = 0
    """Bytes loaded for offloaded contexts."""
    experts: float = 0
    """Experts of a layer that are read, of all layers that have some: of a part of the layers, their share."""

    def plus(self, other: StepLoad) -> StepLoad:
        """Return the load of a step that does both."""
        return StepLoad(*[one + more for one, more in zip(self, other, strict=True)])

    def with_chunk(self, start: int, length: int, experts: ExpertCounts = DENSE) -> StepLoad:
        """Return the load with one more chunk of a prompt."""
        pairs, tokens = self.pairs + length * start + length * (length + 1) // 2, self.tokens + length
        return StepLoad(
            tokens, self.rows + 1, self.context, pairs, self.loaded, max(self.experts, experts.read(tokens))
        )


@dataclass(frozen=True, slots=True)
class CostPrior:
    """Microseconds before anything was measured. Only their proportions matter for long; each is above 0."""

    step: float = 1000.0
    token: float = 100.0
    row: float = 10.0
    key: float = 0.02
    pair: float = 0.02
    byte: float = 0.0005
    expert: float = 100.0
    """One expert of each layer."""

    def __post_init__(self) -> None:
        if not all(0 < each < float("inf") for each in self.values):
            raise ValueError(f"every cost must be above 0 and finite, got {self.values}")

    @property
    def values(self) -> tuple[float, ...]:
        """All of them, in the order of a step's features: 1 and then those of `StepLoad`."""
        return self.step, self.token, self.row, self.key, self.pair, self.byte, self.expert


class LearntRegime(NamedTuple):
    """What was learnt of one regime."""

    num_steps: int
    matrix: tuple[tuple[float, ...], ...]
    vector: tuple[float, ...]
    sums: tuple[float, float]
    factors: tuple[float, ...]
    gain: float
    ratios: tuple[float, ...]


class LearntCosts(NamedTuple):
    """All that a `StepCost` has learnt; another one continues from it."""

    prior: CostPrior
    regimes: dict[Regime, LearntRegime]


class Ratios:
    """The latest ratios of measured to predicted time, and their quantiles.

    Args:
        values: oldest first.
    """

    def __init__(self, values: Sequence[float] = UNSEEN_RATIOS) -> None:
        self._latest = deque(values)
        self._sorted = sorted(values)

    @property
    def values(self) -> tuple[float, ...]:
        """Oldest first."""
        return tuple(self._latest)

    def add(self, ratio: float) -> None:
        self._latest.append(ratio)
        insort(self._sorted, ratio)
        if len(self._latest) > KEPT_RATIOS:
            del self._sorted[bisect_left(self._sorted, self._latest.popleft())]

    def quantile(self, share: float) -> float:
        """Return the smallest ratio that `share` of them do not exceed."""
        return self._sorted[max(0, ceil(share * len(self._sorted)) - 1)]


class RegimeCost:
    """The costs of one kind of steps, in multiples of the prior's.

    The unknowns are the factors u of the prior's costs. An observation z, which is the prior's cost of every part over
    the measured time, says that u * z is 1.
    """

    def __init__(self, learnt: LearntRegime | None = None, decay: float = DECAY) -> None:
        if learnt is None:
            learnt = LearntRegime(0, ((0.0,) * NUM,) * NUM, (0.0,) * NUM, (0.0, 0.0), (1.0,) * NUM, 1.0, UNSEEN_RATIOS)
        self._decay = decay
        self.num_steps = learnt.num_steps
        self.factors = list(learnt.factors)
        self.gain = learnt.gain
        """Measured over fitted time, lately."""
        self.ratios = Ratios(learnt.ratios)
        self._matrix = list(learnt.matrix)
        self._vector = list(learnt.vector)
        self.sums = learnt.sums
        """Sums of the observations' prior costs, and of their squares, each over the measured time."""

    def learnt(self) -> LearntRegime:
        """Return what another one is to continue from."""
        factors, vector = tuple(self.factors), tuple(self._vector)
        return LearntRegime(
            self.num_steps, tuple(self._matrix), vector, self.sums, factors, self.gain, self.ratios.values
        )

    def observe(self, costs: Sequence[float], micros: float, likely: Sequence[float | None] = UNKNOWN) -> None:
        """Learn from a step.

        Args:
            costs: of its parts, by the prior.
            likely: factors that others have learnt, to which these are drawn; None: to their best common one.
        """
        self.num_steps += 1
        scaled = [cost / micros for cost in costs]
        self._add(scaled)
        whole = sum(scaled)
        first, second = self.sums
        self.sums = first, second = self._decay * first + whole, self._decay * second + whole * whole
        scale = first / second
        if self.num_steps == 1:
            self.factors = [scale] * NUM
        self._descend(likely, scale)
        ratio = 1 / max(dot(self.factors, scaled), MIN_MICROS / micros)
        self.gain += GAIN_RATE * (min(max(ratio, self.gain / GAIN_CLIP), self.gain * GAIN_CLIP) - self.gain)

    def _add(self, scaled: Sequence[float]) -> None:
        """Add an observation to the normal equations. Written out, as it runs with every step."""
        t, u, v, w, x, y, z = scaled
        matrix, vector, decay = self._matrix, self._vector, self._decay
        for index, one in enumerate(scaled):
            vector[index] = decay * vector[index] + one
            a, b, c, d, e, f, g = matrix[index]
            if one or a:
                matrix[index] = (
                    decay * a + one * t,
                    decay * b + one * u,
                    decay * c + one * v,
                    decay * d + one * w,
                    decay * e + one * x,
                    decay * f + one * y,
                    decay * g + one * z,
                )

    def _descend(self, likely: Sequence[float | None], scale: float) -> None:
        """Improve one factor after the other.

        Args:
            likely: what they are drawn to, the less the further it is off.
            scale: best common factor, to which the others are drawn.
        """
        factors, parts = self.factors, []
        for index, row in enumerate(self._matrix):
            own, one = row[index], likely[index]
            if one is None:
                drawn = most = scale
            else:
                drawn, most = one, max(scale, one, factors[index])
            if own:
                weight = PRIOR_WEIGHT / (most * most)
                parts.append((index, row, self._vector[index] + weight * drawn, own, own + weight))
            else:  # it never occurred
                factors[index] = drawn
        for _ in range(SWEEPS):
            for index, row, whole, own, divisor in parts:
                rest = whole - dot(row, factors) + own * factors[index]
                factors[index] = rest / divisor if rest > 0 else 0.0


def dot(one: Sequence[float], other: Sequence[float]) -> float:
    """Return the scalar product of two vectors of `NUM` numbers, added from left to right."""
    a, b, c, d, e, f, g = one
    t, u, v, w, x, y, z = other
    return a * t + b * u + c * v + d * w + e * x + f * y + g * z


class StepCost:
    """Predicts how long steps take, and learns from those that ran.

    Args:
        prior: costs to begin with.
        learnt: what another one has learnt, with its prior.
        decay: of the weight of an observation with each later one of its regime; 1: all count the same.
    """

    def __init__(self, prior: CostPrior | None = None, learnt: LearntCosts | None = None, decay: float = DECAY) -> None:
        self._prior = learnt.prior if learnt is not None else prior or CostPrior()
        known = {} if learnt is None else learnt.regimes
        self._regimes = {regime: RegimeCost(known.get(regime), decay) for regime in Regime}
        self._micros: dict[Regime, tuple[float, ...]] = {}
        """Costs of regimes, until something is learnt that changes them."""

    def learnt(self) -> LearntCosts:
        """Return what was learnt."""
        return LearntCosts(self._prior, {name: each.learnt() for name, each in self._regimes.items() if each.num_steps})

    def num_steps(self, regime: Regime) -> int:
        """Return how many steps of a kind it has learnt from."""
        return self._regimes[regime].num_steps

    def costs(self, regime: Regime) -> tuple[float, ...]:
        """Return the fitted microseconds of a step, a token, a row, a key, a pair, a byte and an expert, at the
        machine's usual speed."""
        found = self._micros.get(regime)
        if found is None:
            cost = self._regimes[regime]
            factors = cost.factors if cost.num_steps else [self._scale()] * NUM
            found = tuple([factor * prior for factor, prior in zip(factors, self._prior.values, strict=True)])
            self._micros[regime] = found
        return found

    def speed(self, regime: Regime) -> float:
        """Return what times are lately multiplied by."""
        return self._regimes[regime].gain

    def margin(self, regime: Regime, quantile: float) -> float:
        """Return the factor that a step's time exceeds its prediction by in no more than 1 - `quantile` of the latest
        steps; from 1 to 3."""
        return min(max(self._regimes[regime].ratios.quantile(quantile), MIN_MARGIN), MAX_MARGIN)

    def fitted(self, regime: Regime, load: StepLoad) -> float:
        """Return a step's microseconds at the machine's usual speed, at least `MIN_MICROS`."""
        return max(dot(self.costs(regime), (1, *load)), MIN_MICROS)

    def predict(self, regime: Regime, load: StepLoad) -> float:
        """Return a step's microseconds at the machine's speed of late. It does not fall when a count rises."""
        return self._regimes[regime].gain * self.fitted(regime, load)

    def observe(self, regime: Regime, load: StepLoad, micros: float) -> None:
        """Learn from a step.

        Args:
            micros: measured, above 0.
        """
        cost = self._regimes[regime]
        if cost.num_steps >= WARM_UP:
            predicted = self.predict(regime, load)
            cost.ratios.add(micros / predicted)
            micros = max(micros, predicted / FASTEST)
        step, token, row, key, pair, byte, expert = self._prior.values
        tokens, rows, context, pairs, loaded, experts = load
        costs = (step, token * tokens, row * rows, key * context, pair * pairs, byte * loaded, expert * experts)
        cost.observe(costs, micros, self._likely(regime))
        self._micros.clear()

    def _likely(self, regime: Regime) -> Sequence[float | None]:
        """Return the factors of a mixed step that other steps have shown: what a token of a prompt costs, and what
        decodes do. Layers of a chunk cost what they cost without decodes, or in steps of whole chunks."""
        if regime not in (Regime.MIXED, Regime.SLICED, Regime.LAYERS):
            return UNKNOWN
        step: float | None = None
        row = key = token = pair = byte = expert = step
        prefill, decode = self._regimes[Regime.PREFILL], self._regimes[Regime.DECODE]
        if regime is Regime.SLICED and self._regimes[Regime.LAYERS].num_steps:
            prefill = self._regimes[Regime.LAYERS]
        if not decode.num_steps:
            decode = self._regimes[Regime.GRAPH]
        if prefill.num_steps:
            token, pair, byte, expert = prefill.factors[1], *prefill.factors[4:]
        if decode.num_steps and regime is not Regime.LAYERS:
            step, row, key, expert = decode.factors[0], decode.factors[2], decode.factors[3], decode.factors[6]
            if token is not None:  # a decode is a row and a token
                row += (decode.factors[1] - token) * self._prior.token / self._prior.row
                row = max(0.0, row)
        return step, token, row, key, pair, byte, expert

    def _scale(self) -> float:
        first = second = 0.0
        for each in self._regimes.values():
            first, second = first + each.sums[0], second + each.sums[1]
        return first / second if second else 1.0

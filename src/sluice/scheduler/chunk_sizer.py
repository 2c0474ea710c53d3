"""ChunkSizer: how deep in a prompt a token takes twice as long as the first one, by the time that steps took.

SGLang fits a quadratic to the times of chunks that it runs at its start, and asks it for each next chunk
(`predict_next_chunk_size`). Here the quadratic is that of `EqualTimeBudget`, and its two coefficients are those of
`StepCost`: what a token costs, and what a pair of a query and a key costs. They begin with a profile of the engine's
start, and continue with every step that is committed. As times come with commits, what is planned is a function of the
calls made, and a recorded run plans the same when it is replayed.

Where all chunks take the same time, their times alone do not tell whether tokens cost anything. So what is learnt stays
within `MOST_CHANGE` times what the start has shown.
"""

from __future__ import annotations

from collections import deque
from functools import partial
from typing import NamedTuple

from sluice.scheduler.batch import BatchBuilder
from sluice.scheduler.budget import EqualTimeBudget
from sluice.scheduler.cost import LearntCosts, StepCost, StepLoad
from sluice.scheduler.pacer import Pacing
from sluice.types import Regime, SchedulerLimits

KNOWN_AFTER = 8
"""Steps of a kind after which their costs are used."""
MOST_CHANGE = 4.0


class TimedChunk(NamedTuple):
    """A step in flight."""

    step: int
    regime: Regime
    load: StepLoad


class ChunkSizer:
    """Gives each step a budget of prompt tokens that take as long as the first chunk of a prompt.

    Args:
        limits: whose `dynamic_chunking` is `CHUNKS_BY_TIME`.
        page_size: tokens.
        pacing: what is known before the first step.
    """

    def __init__(self, limits: SchedulerLimits, page_size: int, pacing: Pacing) -> None:
        self._limits = limits
        self._page_size = page_size
        learnt = pacing.learnt
        self._cost = StepCost(pacing.prior, None if learnt is None else learnt.costs)
        self._planned: deque[TimedChunk] = deque()
        prior = pacing.prior.token / pacing.prior.pair
        self._start = min(max(self._ratio(prior), prior / MOST_CHANGE), prior * MOST_CHANGE)

    def learnt(self) -> LearntCosts:
        """Return what another one is to continue from."""
        return self._cost.learnt()

    @property
    def doubles_at(self) -> int:
        """Position at which a token of a prompt takes twice as long as the first one, at least 1."""
        ratio = self._ratio(self._start)
        return max(1, round(min(max(ratio, self._start / MOST_CHANGE), self._start * MOST_CHANGE)))

    def budget(self, batch: BatchBuilder) -> EqualTimeBudget:
        """Return the budget of a step that is about to be filled."""
        limits = self._limits
        return EqualTimeBudget(
            limits.chunked_prefill_size,
            self._page_size,
            self.doubles_at,
            limits.dynamic_chunking_smoothing,
            partial(self._tokens_of_decodes, batch),
        )

    def planned(self, step: int, batch: BatchBuilder) -> None:
        """Note a step that was planned."""
        regime = Regime.DECODE
        if batch.has_prefill:
            regime = Regime.MIXED if batch.num_decodes else Regime.PREFILL
        self._planned.append(TimedChunk(step, regime, batch.load))

    def ended(self, step: int, micros: int) -> None:
        """Learn from the oldest step in flight, or forget it.

        Args:
            step: one that held copies alone is not known.
            micros: measured; 0: it was not, or the step failed.
        """
        if not self._planned or self._planned[0].step != step:
            return
        _, regime, load = self._planned.popleft()
        if micros > 0 and any(load):
            self._cost.observe(regime, load, micros)

    def _tokens_of_decodes(self, batch: BatchBuilder) -> float:
        """Return how many tokens at the beginning of a prompt take as long as the decodes of a step."""
        costs, decodes = self._cost.costs(Regime.MIXED), batch.decodes
        if costs[1] <= 0:
            return decodes.tokens
        return decodes.tokens + (costs[2] * decodes.rows + costs[3] * decodes.context) / costs[1]

    def _ratio(self, unknown: float) -> float:
        """Return what a token costs over what a pair costs, by the kind of steps that were seen most; `unknown` if
        there were few."""
        regime = max((Regime.PREFILL, Regime.MIXED), key=self._cost.num_steps)
        token, pair = self._cost.costs(regime)[1], self._cost.costs(regime)[4]
        if self._cost.num_steps(regime) < KNOWN_AFTER or token <= 0 or pair <= 0:
            return unknown
        return token / pair

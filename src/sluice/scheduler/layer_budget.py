"""LayerBudget: chunks that are divided among steps, layer by layer, where steps have an ITL target.

What a step cannot hold of a prompt becomes a long chunk, of which each step computes some layers:

    length      as many tokens as one layer of which fits into the step, within the most that is allowed
    layers      as many as fit into each step; one in any case for the first prompt of a step

In a pipeline, "layer" stands for a work item of all stages (`LayerItems`).

A chunk of many tokens may compute each of them faster, but a step with layers of it reads the weights twice, once for
the decodes. So chunks are divided where more tokens a step are computed that way, by what both kinds of steps have
taken, and where not even the smallest whole chunk keeps to the time.
"""

from __future__ import annotations

from math import ceil

from sluice.scheduler.batch import load_of_layers
from sluice.scheduler.budget import UNLIMITED
from sluice.scheduler.cost import StepLoad, dot
from sluice.scheduler.pacer import TargetBudget
from sluice.scheduler.within import tokens_within
from sluice.types import Chunk, SchedulerLimits

OPENED_FROM = 4
"""A chunk that is not the first of its step is begun only if at least this part of the step's time for prompts is left:
4 is a quarter. In less, it would be too short to be worth its steps."""


class LayerBudget:
    """Says how long such chunks are, and how many of their layers a step computes.

    Args:
        step: the budget of the step, which the layers are part of.
        limits: with the most tokens of such a chunk, and the model's layers.
    """

    def __init__(self, step: TargetBudget, limits: SchedulerLimits) -> None:
        self._step = step
        self._longest = limits.sliced_chunk_size
        self._limits = limits
        self._micros: float | None = None
        """The time of the step if it has layers of a chunk; None: it was not asked for."""

    def divides(self, start: int, length: int) -> bool:
        """Return whether a chunk from position `start` is more than the step holds."""
        return length > self._step.left_to_last(start)

    def length(self, start: int, extend_len: int, at_most: int, most: int, *, is_first: bool) -> int | None:
        """Return the tokens of a chunk from position `start` that is divided among steps; 0: it is not to be begun in
        this one; None: whole chunks are to be computed.

        Args:
            extend_len: tokens that are wanted.
            at_most: a share of the step, in tokens as they cost at the beginning of a prompt.
            most: tokens that other budgets leave.
            is_first: whether the step has no other prompt.
        """
        longest = min(extend_len, self._longest)
        if not self.divides(start, longest) or not self._pays(start):
            return None
        length = self._fitting(start, longest, at_most, most, is_last=longest == extend_len, is_first=is_first)
        while 0 < length < longest and self._items(length) < self._items(longest):
            # In a pipeline a shorter chunk has fewer parts, and so each item has more of it.
            longest = length
            length = self._fitting(start, longest, at_most, most, is_last=True, is_first=is_first)
        if length < extend_len:
            length = max(0, self._step.cut(start, length))
        return length if not length or self.divides(start, length) else None

    def layers(self, chunk: Chunk, left: int, at_most: int, most: int, *, least: int) -> int:
        """Return how many of a chunk's next layers the step takes.

        Args:
            left: layers that are not planned.
            at_most, most: as of `length`.
            least: layers that it takes in any case.
        """
        micros, costs = self._time(at_most)
        layer = self._micros_of_layer(chunk, costs)
        ramp = min(self._step.left_to_layers(), most) * self._items(chunk.length) // chunk.length
        fitting = int(micros / layer) if layer * left > micros else left
        return max(min(left, fitting, ramp), least)

    def take(self, chunk: Chunk, count: int) -> int:
        """Count layers that are planned, and return the tokens that they cost."""
        tokens = -(-chunk.length * count // self._items(chunk.length))
        self._step.take(chunk.start, tokens)
        return tokens

    def has_room_for_others(self, chunk: Chunk) -> bool:
        """Return whether a layer of a chunk takes at most half of what the step has for prompts."""
        micros, costs = self._time(UNLIMITED)
        return 2 * self._micros_of_layer(chunk, costs) <= micros

    def _pays(self, start: int) -> bool:
        """Return whether a step computes more tokens of a prompt from position `start` if it computes layers of a long
        chunk. Without a target there is no saying."""
        step = self._step
        if not step.target:
            return False
        tried = step.pacer.tried(step.batch)
        if tried is not None:
            return tried
        limit, whole = step.limit()
        experts = step.batch.experts
        if dot(whole, (1, *step.batch.load.with_chunk(start, step.quantum, experts))) > limit.micros:
            return True  # not even the smallest chunk keeps to the time; a layer may
        micros, costs = self._time(UNLIMITED)
        return tokens_within(costs, micros, start, experts) > step.left(start)

    def _fitting(self, start: int, longest: int, at_most: int, most: int, *, is_last: bool, is_first: bool) -> int:
        """Return the tokens of a chunk from position `start`, up to `longest`, one layer of which fits into the step;
        0 if too little of the step is left to begin it.

        Args:
            is_last: whether `longest` tokens end their prompt.
        """
        step, layers, experts = self._step, self._items(longest), self._step.batch.experts
        micros, costs = self._time(at_most)
        ramp = min(step.left_to_layers(), most) * layers
        of_prompts = self._limit() - dot(costs, (1, *step.batch.decodes))
        if not is_first and (OPENED_FROM * micros < of_prompts or ramp < step.quantum):
            return 0
        within = tokens_within(costs, micros * layers - costs[2], start, experts)
        layer = dot(costs, (0, *StepLoad().with_chunk(start, longest, experts))) / layers
        if within > longest and not is_last and layer * UNLIMITED > micros:  # or else layers seem to cost nothing
            # A whole number of layers is to take all of the time.
            within = tokens_within(costs, micros / ceil(micros / layer) * layers - costs[2], start, experts)
        return min(longest, max(min(ramp, within), step.quantum))

    def _micros_of_layer(self, chunk: Chunk, costs: tuple[float, ...]) -> float:
        return dot(costs, (0, *load_of_layers(chunk, 1 / self._items(chunk.length), self._step.batch.experts)))

    def _items(self, length: int) -> int:
        """Return the work items of a chunk of so many tokens. Without a pipeline, they are the model's layers."""
        return self._limits.layer_items(length).total

    def _time(self, at_most: int) -> tuple[float, tuple[float, ...]]:
        """Return the microseconds that are left of the step, or of a share of it, and the costs of its parts if it has
        layers of a chunk."""
        step = self._step
        costs = step.pacer.cost.costs(step.pacer.regime_of_layers(step.batch))
        micros = max(0.0, self._limit() - dot(costs, (1, *step.batch.load)))
        room = step.left(0)
        return (micros * at_most / room if at_most < room else micros), costs

    def _limit(self) -> float:
        """Return the microseconds of the step if it has layers of a chunk. It is asked for when all decodes are
        planned, and perhaps prompts."""
        if self._micros is None:
            step = self._step
            regime = step.pacer.regime_of_layers(step.batch)
            self._micros = step.pacer.limit(step.batch, regime, step.target).micros
        return self._micros

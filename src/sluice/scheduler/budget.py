"""How many prompt tokens a step may still take.

A token costs its products with the weights, which are the same for all, and its products with every key before it. With
a fixed budget the chunks of a long prompt therefore take longer and longer, and so do the gaps of the streams beside
them. Where chunks are dynamic, a budget is spent on both, and what a deep prompt gets is what takes as long as the
first chunk of a prompt.
"""

from __future__ import annotations

from math import isqrt
from typing import Protocol

from sluice.types import Bound

UNLIMITED = 1 << 60


class ChunkBudget(Protocol):
    """The prompt tokens that one step takes."""

    @property
    def bound(self) -> Bound:
        """The limit that it stands for, after `left`."""
        ...

    @property
    def quantum(self) -> int:
        """The fewest tokens that a share of the step is worth: a page, or less where chunks may end within one."""
        ...

    def left(self, start: int) -> int:
        """Return the most tokens that a chunk from position `start` may have."""
        ...

    def left_to_last(self, start: int) -> int:
        """Return the most tokens that a chunk from position `start` may have if it is the last of its prompt: it may
        exceed the chunk size by a page, but no time that the step must keep to."""
        ...

    def tokens_at_depth(self, tokens: int, start: int) -> int:
        """Return how many tokens from position `start` take as long as `tokens` from the beginning; a page at least."""
        ...

    def cut(self, start: int, wanted: int) -> int:
        """Return the part of `wanted` tokens from position `start` that a chunk has if it is not a prompt's last, so
        that it ends on a page boundary; 0 or less: none."""
        ...

    def take(self, start: int, length: int) -> None:
        """Count a chunk that is planned."""
        ...

    def end_forced(self) -> None:
        """Note that what was taken so far is of streams: a quantum is left to the first prompt all the same."""
        ...

    def share(self) -> None:
        """Leave half of the step to the prompts behind the first, even if its chunk cost more."""
        ...


class FixedBudget:
    """A fixed number of tokens, wherever in their prompts they are.

    Args:
        page_size: tokens; chunks are cut to whole pages.
    """

    bound = Bound.CHUNKED_PREFILL_SIZE

    def __init__(self, tokens: int, page_size: int) -> None:
        self._tokens = tokens
        self._page_size = page_size

    @property
    def quantum(self) -> int:
        return self._page_size

    def left(self, start: int) -> int:
        return self._tokens

    def left_to_last(self, start: int) -> int:
        return self._tokens + self._page_size

    def tokens_at_depth(self, tokens: int, start: int) -> int:
        return tokens

    def cut(self, start: int, wanted: int) -> int:
        return wanted - (start + wanted) % self._page_size

    def take(self, start: int, length: int) -> None:
        self._tokens -= length

    def end_forced(self) -> None:
        self._tokens = max(self._tokens, self._page_size)

    def share(self) -> None:
        """Do nothing: all tokens cost the same, so the first prompt has half of them at most."""


class EqualTimeBudget:
    """As many tokens as take as long as the first chunk of a prompt.

    If a token at position D costs twice as much as the first one, x tokens from position s cost x (2 D + 2 s + x), in
    units that make all costs integers. A step's first chunk is never cut to less than a quarter of the budget, or a
    page: deep in a prompt, many small chunks would each read all weights for little. (SGLang sizes chunks by the same
    quadratic, fitted to measured times; its floor is the same.)

    Args:
        tokens: of a chunk at the beginning of a prompt; never more.
        page_size: tokens; chunks are cut to whole pages.
        doubles_at: D, at least 1.
    """

    bound = Bound.CHUNKED_PREFILL_SIZE

    def __init__(self, tokens: int, page_size: int, doubles_at: int) -> None:
        self._tokens = tokens
        self._page_size = page_size
        self._doubles_at = doubles_at
        self._cost = self._cost_of(0, tokens)
        self._half = self._cost // 2
        self._least = max(page_size, tokens // 4)
        self._floor = self._least

    @property
    def quantum(self) -> int:
        return self._page_size

    def left(self, start: int) -> int:
        return min(self._tokens, max(self._floor, self._length(self._cost, start)))

    def left_to_last(self, start: int) -> int:
        return self.left(start) + self._page_size

    def tokens_at_depth(self, tokens: int, start: int) -> int:
        return max(self._page_size, self._length(self._cost_of(0, tokens), start))

    def cut(self, start: int, wanted: int) -> int:
        return wanted - (start + wanted) % self._page_size

    def take(self, start: int, length: int) -> None:
        self._tokens -= length
        self._cost = max(0, self._cost - self._cost_of(start, length))
        self._floor = 0

    def end_forced(self) -> None:
        self._tokens = max(self._tokens, self._page_size)
        self._floor = self._least

    def share(self) -> None:
        self._cost = max(self._cost, self._half)

    def _cost_of(self, start: int, length: int) -> int:
        return length * (2 * self._doubles_at + 2 * start + length)

    def _length(self, cost: int, start: int) -> int:
        """Return the most tokens from `start` that cost no more than `cost`."""
        before = self._doubles_at + start
        return isqrt(before * before + cost) - before


def budget_for(tokens: int, page_size: int, doubles_at: int) -> ChunkBudget:
    """Return a budget for one step.

    Args:
        tokens: of the step; 0: prompts are not cut, so there is no budget.
        page_size: tokens of a page.
        doubles_at: position at which a token costs twice as much as the first one; 0: chunks are not dynamic.
    """
    if tokens and doubles_at:
        return EqualTimeBudget(tokens, page_size, doubles_at)
    return FixedBudget(tokens or UNLIMITED, page_size)

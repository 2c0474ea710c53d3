"""How many prompt tokens a step may still take.

A token costs its products with the weights, which are the same for all, and its products with every key before it. With
a fixed budget the chunks of a long prompt therefore take longer and longer, and so do the gaps of the streams beside
them. Where chunks are dynamic, a budget is spent on both, and what a deep prompt gets is what takes as long as the
first chunk of a prompt.
"""

from __future__ import annotations

from math import isqrt
from typing import Protocol

UNLIMITED = 1 << 60


class ChunkBudget(Protocol):
    """What one step takes."""

    def left(self, start: int) -> int:
        """Most tokens that a chunk from position `start` may have."""
        ...

    def tokens_at_depth(self, tokens: int, start: int) -> int:
        """As many tokens from position `start` as take as long as `tokens` from the beginning; a page at least."""
        ...

    def take(self, start: int, length: int) -> None:
        """A chunk is planned."""
        ...

    def share(self) -> None:
        """Whoever comes behind the first has half of a step, whatever a page of the first cost."""
        ...


class FixedBudget:
    """So many tokens, wherever they are."""

    def __init__(self, tokens: int) -> None:
        self._tokens = tokens

    def left(self, start: int) -> int:
        """See `ChunkBudget.left`."""
        return self._tokens

    def tokens_at_depth(self, tokens: int, start: int) -> int:
        """See `ChunkBudget.worth`."""
        return tokens

    def take(self, start: int, length: int) -> None:
        """See `ChunkBudget.take`."""
        self._tokens -= length

    def share(self) -> None:
        """See `ChunkBudget.share`: all tokens cost the same, and the first has half of them."""


class EqualTimeBudget:
    """As long as the first chunk of a prompt takes.

    With D the position at which a token costs twice the first one, x tokens from position s cost x (2 D + 2 s + x), in
    units in which integers do. A step's first chunk is never cut to less than a quarter of the budget, or a page: far
    out, many small chunks would each read all weights for little. (SGLang sizes chunks by the same quadratic, fitted to
    measured times; its floor is the same.)

    Args:
        tokens: of a chunk at the beginning of a prompt; never more.
        page_size: tokens; chunks are cut to whole pages.
        doubles_at: D, at least 1.
    """

    def __init__(self, tokens: int, page_size: int, doubles_at: int) -> None:
        self._tokens = tokens
        self._page_size = page_size
        self._doubles_at = doubles_at
        self._cost = self._cost_of(0, tokens)
        self._half = self._cost // 2
        self._floor = max(page_size, tokens // 4)

    def left(self, start: int) -> int:
        """See `ChunkBudget.left`."""
        return min(self._tokens, max(self._floor, self._length(self._cost, start)))

    def tokens_at_depth(self, tokens: int, start: int) -> int:
        """See `ChunkBudget.worth`."""
        return max(self._page_size, self._length(self._cost_of(0, tokens), start))

    def take(self, start: int, length: int) -> None:
        """See `ChunkBudget.take`."""
        self._tokens -= length
        self._cost = max(0, self._cost - self._cost_of(start, length))
        self._floor = 0

    def share(self) -> None:
        """See `ChunkBudget.share`."""
        self._cost = max(self._cost, self._half)

    def _cost_of(self, start: int, length: int) -> int:
        return length * (2 * self._doubles_at + 2 * start + length)

    def _length(self, cost: int, start: int) -> int:
        """The most tokens from `start` that cost no more."""
        before = self._doubles_at + start
        return isqrt(before * before + cost) - before


def budget_for(tokens: int, page_size: int, doubles_at: int) -> ChunkBudget:
    """
    Args:
        tokens: of a step; 0: prompts are not cut, so there is no budget.
        doubles_at: 0: chunks are not dynamic.
    """
    return EqualTimeBudget(tokens, page_size, doubles_at) if tokens and doubles_at else FixedBudget(tokens or UNLIMITED)

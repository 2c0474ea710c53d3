"""How many prompt tokens a step may still take.

A token costs its products with the weights, which are the same for all, and its products with every key before it. With
a fixed budget the chunks of a long prompt therefore take longer and longer, and so do the gaps of the streams beside
them. Where chunks are dynamic, a budget is spent on both, and what a deep prompt gets is what takes as long as the
first chunk of a prompt.
"""

from __future__ import annotations

from collections.abc import Callable
from math import isqrt
from typing import Protocol

from sluice.types import Bound

UNLIMITED = 1 << 60
TILE = 64
"""Long chunks hold a multiple of so many tokens."""


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
    quadratic, fitted to measured times. Its smoothing, its least chunk and its multiples of 64 tokens are the same.)

    Args:
        tokens: of a chunk at the beginning of a prompt; never more.
        page_size: tokens; chunks are cut to whole pages, and to multiples of `TILE` if a quarter of `tokens` is one.
        doubles_at: D, at least 1.
        smoothing: how far a step's first chunk goes from `tokens` to what takes as long; 1: all the way.
        decodes: returns how many tokens take as long as the decodes of the step; called when these are planned.
    """

    bound = Bound.CHUNKED_PREFILL_SIZE

    def __init__(
        self,
        tokens: int,
        page_size: int,
        doubles_at: int,
        smoothing: float = 1.0,
        decodes: Callable[[], float] | None = None,
    ) -> None:
        self._tokens = self._size = tokens
        self._page_size = page_size
        self._doubles_at = doubles_at
        self._smoothing = smoothing
        self._decodes = decodes
        self._cost = self._cost_of(0, tokens)
        self._half = self._cost // 2
        self._least = max(page_size, tokens // 4)
        self._floor = self._least
        self._tile = tile_of(tokens, page_size)

    @property
    def quantum(self) -> int:
        return self._page_size

    def left(self, start: int) -> int:
        self._count_decodes()
        equal = self._length(self._cost, start)
        if self._floor and self._smoothing < 1:
            equal = int(self._size + self._smoothing * (equal - self._size))
        return min(self._tokens, max(self._floor, equal))

    def left_to_last(self, start: int) -> int:
        tail = max(self._page_size, self._floor // 4)
        return min(self.left(start) + tail, max(0, self._tokens) + self._page_size)

    def tokens_at_depth(self, tokens: int, start: int) -> int:
        return max(self._page_size, self._length(self._cost_of(0, tokens), start))

    def cut(self, start: int, wanted: int) -> int:
        return wanted - (start + wanted) % (self._tile if wanted >= self._tile else self._page_size)

    def take(self, start: int, length: int) -> None:
        self._count_decodes()
        self._tokens -= length
        self._cost = max(0, self._cost - self._cost_of(start, length))
        self._floor = 0

    def end_forced(self) -> None:
        self._tokens = max(self._tokens, self._page_size)
        self._floor = self._least

    def share(self) -> None:
        self._cost = max(self._cost, self._half)

    def _count_decodes(self) -> None:
        if self._decodes is not None:
            tokens, self._decodes = self._decodes(), None
            self._cost = max(0, self._cost - round(2 * self._doubles_at * tokens))

    def _cost_of(self, start: int, length: int) -> int:
        return length * (2 * self._doubles_at + 2 * start + length)

    def _length(self, cost: int, start: int) -> int:
        """Return the most tokens from `start` that cost no more than `cost`."""
        before = self._doubles_at + start
        return isqrt(before * before + cost) - before


def tile_of(tokens: int, page_size: int) -> int:
    """Return the tokens to a multiple of which dynamic chunks are cut, if they are longer: whole pages.

    Args:
        tokens: of the longest chunk.
    """
    return -(-TILE // page_size) * page_size if tokens >= 4 * TILE else page_size


def budget_for(tokens: int, page_size: int, doubles_at: int, smoothing: float = 1.0) -> ChunkBudget:
    """Return a budget for one step.

    Args:
        tokens: of the step; 0: prompts are not cut, so there is no budget.
        page_size: tokens of a page.
        doubles_at: position at which a token costs twice as much as the first one; 0 or less: it is not known.
        smoothing: as of `EqualTimeBudget`.
    """
    if tokens and doubles_at > 0:
        return EqualTimeBudget(tokens, page_size, doubles_at, smoothing)
    return FixedBudget(tokens or UNLIMITED, page_size)

"""Counting how large values were, in fixed buckets: cheap enough for every token."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from typing import NamedTuple


class Tally(NamedTuple):
    """What a histogram has seen."""

    bounds: tuple[float, ...]
    """Upper ends of all buckets but the last, which has none."""
    counts: tuple[int, ...]
    """Values in each bucket: one more than `bounds`, not accumulated."""
    total: float
    """Sum of the values."""


class Histogram:
    """Values by bucket.

    Args:
        bounds: upper ends, growing; a value belongs to the first bucket that is not below it.
    """

    def __init__(self, bounds: Sequence[float]) -> None:
        self._bounds = tuple(bounds)
        self._counts = [0] * (len(self._bounds) + 1)
        self._total = 0.0

    def add(self, value: float) -> None:
        self._counts[bisect_left(self._bounds, value)] += 1
        self._total += value

    def tally(self) -> Tally:
        return Tally(self._bounds, tuple(self._counts), self._total)

"""Computes the weights of rotary pairs with which a head distinguishes one distance from all others.

With pairs of frequencies f_i and weights w_i, a head that looks for distance D scores distance D + y with
sum_i w_i cos(f_i y). The right distance's score is above all others by the gap
1 - max_{y >= 1} sum_i w_i cos(f_i y). The weights with the largest gap are the optimal mixed strategy of a matrix game
with payoffs 1 - cos(f_i y). This linear program is solved by the simplex method (Dantzig, 1951) with a column for each
y; only columns that enter are built.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]

TOLERANCE = 1e-6
MAX_STEPS = 10_000
SLICE = 1 << 18
"""Distances whose payoffs are computed at a time."""


class OffsetWeights(NamedTuple):
    """Weights of rotary pairs, and their gap."""

    weights: Floats
    """[pairs], at least 0, summing to 1."""
    gap: float
    """Difference of the right distance's score to the best other one."""


def separate_offsets(frequencies: Floats, reach: int) -> OffsetWeights:
    """Return the weights with the largest gap over the distances y = 1 .. reach, optimal to about 1e-6 of it.

    Args:
        frequencies: [pairs] radians per position.
        reach: largest distance. Takes 4 bytes of memory for each pair and distance.

    Raises:
        ValueError: there is no pair, or the reach is below 1.
    """
    if not len(frequencies) or reach < 1:
        raise ValueError(f"at least one frequency and a reach of at least 1 are needed, got {frequencies} and {reach}")
    payoffs = _payoffs(frequencies, reach)
    simplex = _Simplex(len(frequencies))
    for _ in range(MAX_STEPS):
        prices = simplex.prices
        slack = int(prices.argmin())
        if prices[slack] < -TOLERANCE:
            simplex.enter(np.eye(len(prices))[slack], 0.0)
            continue
        nearest = 1 + int((payoffs @ prices.astype(np.float32)).argmin())
        column = 1 - np.cos(nearest * frequencies)
        if float(column @ prices) >= 1 - TOLERANCE:
            break
        simplex.enter(column, 1.0)
    else:
        raise AssertionError(f"no optimum in {MAX_STEPS} steps for {frequencies} and {reach}")
    weights = np.maximum(simplex.prices, 0)
    weights /= weights.sum()
    return OffsetWeights(weights, gap_of(weights, frequencies, reach))


def gap_of(weights: Floats, frequencies: Floats, reach: int) -> float:
    """Return 1 - max over y = 1 .. reach of sum_i w_i cos(f_i y), computed at every y.

    Args:
        weights, frequencies: [pairs].
    """
    worst = np.inf
    for first in range(1, reach + 1, SLICE):
        distances = np.arange(first, min(first + SLICE, reach + 1))
        worst = min(worst, float(((1 - np.cos(np.outer(distances, frequencies))) @ weights).min()))
    return worst


def _payoffs(frequencies: Floats, reach: int) -> npt.NDArray[np.float32]:
    """Return 1 - cos(f_i y) of y = 1 .. reach, [reach, pairs]."""
    payoffs = np.empty((reach, len(frequencies)), dtype=np.float32)
    for first in range(0, reach, SLICE):
        distances = np.arange(first + 1, min(first + SLICE, reach) + 1)
        payoffs[first : first + SLICE] = 1 - np.cos(np.outer(distances, frequencies))
    return payoffs


class _Simplex:
    """Maximises the sum of x >= 0 with A x <= 1, whose columns are given one by one. Slacks are the first basis.

    Args:
        rows: number of rows of A.
    """

    def __init__(self, rows: int) -> None:
        self._inverse = np.eye(rows)
        self._values = np.ones(rows)
        self._costs = np.zeros(rows)

    @property
    def prices(self) -> Floats:
        """Dual prices, [rows], proportional to the game's weights at the optimum."""
        return self._costs @ self._inverse

    def enter(self, column: Floats, cost: float) -> None:
        """Add a column to the basis, and remove the one that it drives to zero first."""
        direction = self._inverse @ column
        with np.errstate(divide="ignore"):
            ratios = np.where(direction > 1e-12, self._values / direction, np.inf)
        row = int(ratios.argmin())
        self._values -= ratios[row] * direction
        self._values[row] = ratios[row]
        pivot = self._inverse[row] / direction[row]
        self._inverse -= np.outer(direction, pivot)
        self._inverse[row] = pivot
        self._costs[row] = cost

"""Percentiles by nearest rank."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class LatencySpread:
    """Percentiles and the maximum, in milliseconds."""

    p50: float
    p99: float
    max: float


def spread(values: Iterable[float]) -> LatencySpread:
    """Return percentiles by nearest rank; zeros if there are no values."""
    ordered = sorted(values)
    if not ordered:
        return LatencySpread(0.0, 0.0, 0.0)
    return LatencySpread(percentile(ordered, 0.5), percentile(ordered, 0.99), ordered[-1])


def percentile(ordered: list[float], share: float) -> float:
    """Return the smallest value that `share` of the sorted values do not exceed."""
    return ordered[max(0, math.ceil(share * len(ordered)) - 1)]

"""Service level objectives such as `ttft_p95<2s,itl_p99<200ms`."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

from sluice.bench.metrics import percentile
from sluice.config import ConfigError
from sluice.config.base import micros_of

METRICS = ("ttft", "itl", "tpot", "e2e")
PART = re.compile(r"(?P<metric>[a-z0-9]+)_(?P<quantile>mean|max|p[0-9]+(\.[0-9]+)?)\s*<=?\s*(?P<limit>[0-9.]+[a-z]+)")
ACCEPTED = "METRIC_QUANTILE<TIME, such as ttft_p95<2s, with one of ttft, itl, tpot, e2e, and mean, max or p50 to p99.9"


class Figure(NamedTuple):
    """A latency of which an objective is made."""

    metric: str
    """One of `METRICS`."""
    quantile: str
    """`mean`, `max`, or a percentile such as `p95`."""

    def __str__(self) -> str:
        return f"{self.metric}_{self.quantile}"

    def of(self, ordered: list[float]) -> float:
        """Return the figure of values in ascending order, of which the last may be infinite; 0 if there are none."""
        if not ordered:
            return 0.0
        if self.quantile == "mean":
            return sum(ordered) / len(ordered)
        found = percentile(ordered, 100.0 if self.quantile == "max" else float(self.quantile[1:]))
        return math.inf if math.isnan(found) else found  # between two infinite values


@dataclass(frozen=True, slots=True)
class Objective:
    """A limit of one figure."""

    figure: Figure
    limit: float
    """Seconds."""

    def __str__(self) -> str:
        return f"{self.figure}<{self.limit * 1000:g}ms" if self.limit < 1 else f"{self.figure}<{self.limit:g}s"


@dataclass(frozen=True, slots=True)
class Slo:
    """Objectives that hold together."""

    objectives: tuple[Objective, ...]

    def excess(self, values: Mapping[Figure, float]) -> float:
        """Return by how many times the worst figure is above its limit; at most 1: all objectives are met."""
        return max(values[each.figure] / each.limit for each in self.objectives)

    def worst(self, values: Mapping[Figure, float]) -> Objective:
        """Return the objective that is missed by most, or met with least to spare."""
        return max(self.objectives, key=lambda each: values[each.figure] / each.limit)

    def __str__(self) -> str:
        return ",".join(map(str, self.objectives))


def parse_slo(text: str) -> Slo:
    """Read objectives with commas between them.

    >>> print(parse_slo("ttft_p95<2s, itl_p99<200ms"))
    ttft_p95<2s,itl_p99<200ms

    Raises:
        ConfigError: a part is no objective, or a figure is named twice.
    """
    found: dict[Figure, Objective] = {}
    for part in text.split(","):
        match = PART.fullmatch(part.strip())
        micros = None if match is None else micros_of(match["limit"])
        if match is None or micros is None or match["metric"] not in METRICS:
            raise ConfigError(f"--slo takes {ACCEPTED}, with commas between them, got {part.strip()!r}")
        figure = Figure(match["metric"], match["quantile"])
        if figure.quantile[0] == "p" and not 0 < float(figure.quantile[1:]) < 100:
            raise ConfigError(f"--slo takes percentiles between 0 and 100, got {part.strip()!r}")
        if figure in found:
            raise ConfigError(f"--slo names {figure} twice")
        found[figure] = Objective(figure, micros / 1_000_000)
    return Slo(tuple(found.values()))

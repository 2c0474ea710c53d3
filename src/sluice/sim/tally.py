"""Tally: the latencies of a simulated run as its requests end, and whether it can still meet an objective."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise

from sluice.bench.metrics import tpot, ttft
from sluice.bench.records import Record
from sluice.sim.slo import Figure, Objective, Slo
from sluice.sim.workload import Arrival

LEFT = "left"
"""The kind of failure of a request whose client went away."""


class Counts:
    """How many latencies of each metric a whole run has at most: those that it has, and one for an end that failed."""

    def __init__(self, arrivals: Sequence[Arrival]) -> None:
        count, gaps = len(arrivals), sum(max(1, each.output_tokens - 1) for each in arrivals)
        self.of = {"ttft": count, "e2e": count, "tpot": count, "itl": gaps}


class SloTally:
    """Collects what a run's objectives are about.

    Args:
        counts: of the whole run.
        excess: the run is hopeless once it is certain that its worst figure will be above its limit by more than this
            factor.
    """

    def __init__(self, slo: Slo, counts: Counts, excess: float = math.inf) -> None:
        self._slo = slo
        self._values: dict[str, list[float]] = {each.figure.metric: [] for each in slo.objectives}
        self._watched = [_Watched(each, counts.of[each.figure.metric], excess) for each in slo.objectives]

    def add(self, record: Record) -> None:
        """Count a request that ended. One that failed, or was refused, waits for ever for what it never had."""
        for metric, values in self._values.items():
            found = latencies(metric, record)
            values += found
            for watched in self._watched:
                if watched.figure.metric == metric:
                    watched.add(found)

    @property
    def is_hopeless(self) -> bool:
        return any(each.is_missed for each in self._watched)

    def missing(self) -> list[Figure]:
        """Return the figures of which nothing was counted so far."""
        return [each.figure for each in self._slo.objectives if not self._values[each.figure.metric]]

    def values(self) -> dict[Figure, float]:
        """Return the figures of what was counted so far."""
        for values in self._values.values():
            values.sort()
        return {each.figure: each.figure.of(self._values[each.figure.metric]) for each in self._slo.objectives}


def latencies(metric: str, record: Record) -> list[float]:
    """Return what a request adds to a metric, in seconds; infinite for what a failed request never had."""
    has_failed = record.failure is not None and record.failure.kind != LEFT
    if metric == "itl":
        found = []
        for (before, _), (after, tokens) in pairwise(record.arrivals):
            found.append(after - before)
            found += [0.0] * (tokens - 1)
        return [*found, math.inf] if has_failed else found
    if metric == "tpot":
        value = math.inf if has_failed else tpot(record)
    elif metric == "ttft":
        value = math.inf if has_failed and not record.arrivals else ttft(record)
    else:
        value = math.inf if has_failed else None if record.failed else record.ended - record.due
    return [] if value is None else [value]


class _Watched:
    """Counts what decides whether an objective can be met by a given factor."""

    def __init__(self, objective: Objective, count: int, excess: float) -> None:
        self.figure = objective.figure
        self._most = objective.limit * excess
        self._count = count
        self._above = 0
        self._sum = 0.0
        quantile = objective.figure.quantile
        if quantile == "mean":
            self._allowed = None
        else:
            share = 1.0 if quantile == "max" else float(quantile[1:]) / 100
            # The percentile lies at or above the value of this place, from 0, in ascending order.
            self._allowed = count - 1 - math.floor((count - 1) * share)

    def add(self, values: Sequence[float]) -> None:
        if self._allowed is None:
            self._sum += math.fsum(values)
        else:
            self._above += sum(value > self._most for value in values)

    @property
    def is_missed(self) -> bool:
        if self._allowed is None:
            return self._sum > self._most * self._count
        return self._above > self._allowed

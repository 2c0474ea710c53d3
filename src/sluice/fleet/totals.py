"""The state of a fleet: that of its replicas, added up."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import reduce
from typing import Any

from sluice.engine.messages import Stats
from sluice.engine.meter import ItlTotals, Tally, Totals
from sluice.types import Occupancy, TierUse

NOTHING = Occupancy(running=0, waiting=0, free_pages=0, cached_pages=0, total_pages=0)


class FleetTotals:
    """Adds up what replicas count. What a replica has counted stays counted when it is gone."""

    def __init__(self) -> None:
        self.latest: Mapping[str, Stats] = {}
        """As the replicas that there are last answered."""
        self._gone = Totals()

    def update(self, answers: Mapping[str, Stats], query_id: int) -> Stats:
        """Return the state of the fleet.

        Args:
            answers: of the replicas that there are, by key.
            query_id: of the result.
        """
        gone = [stats.totals for key, stats in self.latest.items() if key not in answers]
        self._gone = _total([self._gone, *gone])
        self.latest = dict(answers)
        present = list(answers.values())
        steps = [stats.last_step for stats in present if stats.last_step is not None]
        return Stats(
            query_id,
            reduce(_added_occupancy, (stats.occupancy for stats in present), NOTHING),
            max(steps, key=lambda step: step.ended_at, default=None),
            _total([self._gone, *(stats.totals for stats in present)]),
        )


def _total(totals: Iterable[Totals]) -> Totals:
    result: Totals = reduce(_added, totals)
    return result


def _added_occupancy(one: Occupancy, other: Occupancy) -> Occupancy:
    tiers = {use.tier: use for use in one.tiers}
    for use in other.tiers:
        before = tiers.get(use.tier)
        tiers[use.tier] = use if before is None else TierUse(use.tier, *map(sum, zip(before[1:], use[1:], strict=True)))
    plain = one._replace(tiers=()), other._replace(tiers=())
    both: Occupancy = _added(*plain)
    return both._replace(tiers=tuple(tiers.values()))


def _added(one: Any, other: Any) -> Any:
    """Return the sum of two counts of the same kind, field by field; None counts as nothing."""
    if one is None or other is None:
        return other if one is None else one
    match one:
        case Tally():
            return one._replace(counts=_added(one.counts, other.counts), total=one.total + other.total)
        case ItlTotals():  # the target and the margin of the one that is nearer to it
            summed = [_added(*pair) for pair in zip(one[2:], other[2:], strict=True)]
            return ItlTotals(max(one.target, other.target), max(one.margin, other.margin), *summed)
        case dict():
            return {key: _added(one.get(key), other.get(key)) for key in {**one, **other}}
        case tuple() if hasattr(one, "_fields"):
            return type(one)(*map(_added, one, other))
        case tuple():
            size = max(len(one), len(other))
            padded = ((*each, *[0] * (size - len(each))) for each in (one, other))
            return tuple(map(_added, *padded))
    return one + other

"""The state of a fleet: that of its replicas, added up."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import reduce
from itertools import chain
from typing import Any

from sluice.engine.messages import Stats
from sluice.engine.meter import ItlTotals, Tally
from sluice.types import Occupancy, TierUse

NOTHING = Occupancy(running=0, waiting=0, free_pages=0, cached_pages=0, total_pages=0)
MOST_SILENT = 256
"""Replicas that do not answer whose counts are kept separately, so that they may answer again."""


class FleetTotals:
    """Adds up what replicas count. What a replica has counted stays counted while it does not answer, when its engine
    is replaced, and when it is gone."""

    def __init__(self) -> None:
        self.latest: Mapping[str, Stats] = {}
        """State of each replica that answered last time, by key."""
        self._last: dict[str, Stats] = {}
        """Last answer of every replica, by key, the oldest first."""
        self._gone = Stats(0, NOTHING, None)
        self._past, self._past_of = self._gone, list[str]()
        """What those that are gone and some silent replicas have counted. These become many, and change rarely."""

    def update(self, answers: Mapping[str, Stats], query_id: int) -> Stats:
        """Return the state of the fleet.

        Args:
            answers: of the replicas that answered, by key. An answer that was overtaken by a later one is not taken.
            query_id: of the result.
        """
        for key, stats in answers.items():
            self._take(key, stats)
        silent = [key for key in self._last if key not in answers]
        for key in silent[:-MOST_SILENT]:
            self._forget(key)
        silent = silent[-MOST_SILENT:]
        if silent != self._past_of:
            self._past = _total([self._gone, *(_past(self._last[key]) for key in silent)], 0)
            self._past_of = silent
        self.latest = {key: self._last[key] for key in answers}
        return _total([self._past, *self.latest.values()], query_id)

    def _take(self, key: str, stats: Stats) -> None:
        before = self._last.get(key)
        if before is not None and before.query_id > stats.query_id:
            stats = before
        elif before is not None and _has_fallen(before, stats):  # another engine, which counts anew
            self._forget(key)
        self._last.pop(key, None)
        self._last[key] = stats

    def _forget(self, key: str) -> None:
        past = _past(self._last.pop(key))
        self._gone, self._past = _total([self._gone, past], 0), _total([self._past, past], 0)


def _has_fallen(before: Stats, now: Stats) -> bool:
    """Return whether some count is less than it was."""
    one, other = before.totals, now.totals
    counts = [(one.steps, other.steps), (one.decode_tokens, other.decode_tokens)]
    return any(now < before for before, now in [*counts, (one.prefill_tokens, other.prefill_tokens)])


def _past(stats: Stats) -> Stats:
    """Return what an engine has counted, without what it holds and does now."""
    full, totals = stats.occupancy, stats.totals
    tiers = tuple(use._replace(total=0, used=0) for use in full.tiers)
    counted = NOTHING._replace(preemptions=full.preemptions, tiers=tiers)
    if totals.itl is not None:
        totals = totals._replace(itl=totals.itl._replace(target=0.0, margin=0.0))
    return Stats(stats.query_id, counted, None, totals)


def _total(each: Sequence[Stats], query_id: int) -> Stats:
    steps = [stats.last_step for stats in each if stats.last_step is not None]
    return Stats(
        query_id,
        reduce(_added_occupancy, (stats.occupancy for stats in each)),
        max(steps, key=lambda step: step.ended_at, default=None),
        reduce(_added, (stats.totals for stats in each)),
        sum(stats.queued_prefill_tokens for stats in each),
        tuple(chain.from_iterable(stats.prompts for stats in each)),
    )


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

"""What a fleet has counted: that of its replicas, none of it twice."""

from __future__ import annotations

import random

import pytest

from sluice.engine.messages import Stats
from sluice.engine.meter import ItlTotals, Totals
from sluice.engine.prompt_meter import PromptProgress
from sluice.fleet.totals import FleetTotals
from sluice.types import Occupancy, Tier, TierUse


def said(query_id: int, count: int) -> Stats:
    """The answer of a replica that has counted `count` of everything, and holds something."""
    tiers = (TierUse(Tier.HOST, 9, 5, stored=count),)
    occupancy = Occupancy(1, 2, 3, 4, 5, preemptions=count, tiers=tiers)
    itl = ItlTotals(0.05, 1.0 + query_id, {}, (count,), count)
    return Stats(query_id, occupancy, None, Totals(steps=count, decode_tokens=2 * count, itl=itl))


def counted(stats: Stats) -> int:
    """What everything in the state of a fleet has been counted to."""
    steps, full, itl = stats.totals.steps, stats.occupancy, stats.totals.itl
    assert itl is not None
    assert (itl.late, itl.infeasible) == ((steps,), steps)
    assert (stats.totals.decode_tokens, full.preemptions, full.tiers[0].stored) == (2 * steps, steps, steps)
    return steps


def test_a_replica_that_misses_an_answer_is_counted_once() -> None:
    """Its counts stay while it is silent, so that a counter does not fall, and what it holds does not count."""
    totals = FleetTotals()
    assert counted(totals.update({"a": said(1, 10), "b": said(9, 5)}, 1)) == 15
    alone = totals.update({"a": said(2, 11)}, 2)
    assert counted(alone) == 16
    assert (alone.occupancy.total_pages, alone.occupancy.tiers[0].used) == (5, 5)
    assert list(totals.latest) == ["a"]
    assert alone.totals.itl is not None
    assert alone.totals.itl.margin == 3.0
    assert counted(totals.update({"a": said(3, 12), "b": said(10, 7)}, 3)) == 19
    assert counted(totals.update({}, 4)) == 19


def test_a_replica_whose_engine_is_replaced_goes_on_from_what_it_had() -> None:
    """Every replica has its own numbers for its answers."""
    totals = FleetTotals()
    totals.update({"a": said(1, 10), "b": said(100, 5)}, 1)
    assert counted(totals.update({"a": said(2, 3), "b": said(101, 5)}, 2)) == 18
    assert counted(totals.update({"a": said(3, 4), "b": said(102, 5)}, 3)) == 19


def test_an_answer_that_was_overtaken_is_no_other_engine() -> None:
    """A question waits for the slowest replica, so a later one may be answered by the others before it."""
    totals = FleetTotals()
    totals.update({"a": said(2, 10)}, 2)
    assert counted(totals.update({"a": said(1, 9), "b": said(1, 5)}, 1)) == 15
    assert totals.latest["a"].query_id == 2


@pytest.mark.parametrize("seed", range(20))
def test_all_that_was_ever_said_is_counted_once(seed: int) -> None:
    """Replicas answer or not, and their engines are replaced, in any order."""
    draw = random.Random(seed)
    totals, counts, former = FleetTotals(), dict.fromkeys("abcde", 0), 0
    for number in range(30):
        answers = {}
        for key in draw.sample("abcde", draw.randint(0, 4)):
            if counts[key] and draw.random() < 0.2:
                former += counts[key]
                counts[key] = draw.randrange(counts[key])
            else:
                counts[key] += draw.randrange(4)
            answers[key] = said(number, counts[key])
        state = totals.update(answers, number)
        if any(counts.values()):
            assert counted(state) == former + sum(counts.values())


def test_replicas_that_come_and_go_for_ever_stay_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sluice.fleet.totals.MOST_SILENT", 4)
    totals = FleetTotals()
    for number in range(12):
        assert counted(totals.update({str(number): said(1, 1)}, number)) == number + 1
    assert counted(totals.update({str(number): said(2, 2)}, number + 1)) == number + 2


def test_what_waits_at_all_replicas_is_the_backlog() -> None:
    one, other = PromptProgress(1, 10, 40, 2.0), PromptProgress(1, 20, 50, None)
    totals = FleetTotals()
    answers = {
        "a": Stats(1, Occupancy(1, 0, 1, 0, 2), None, queued_prefill_tokens=100, prompts=(one,)),
        "b": Stats(1, Occupancy(1, 0, 1, 0, 2), None, queued_prefill_tokens=30, prompts=(other,)),
    }
    stats = totals.update(answers, 1)
    assert stats.queued_prefill_tokens == 130
    assert stats.prompts == (one, other)
    silent = totals.update({"a": answers["a"]}, 2)
    assert (silent.queued_prefill_tokens, silent.prompts) == (100, (one,))

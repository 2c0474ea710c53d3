"""How many drafts rows have, by how often drafts are accepted and what they cost."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest

from sluice.scheduler.drafting.draft_price import FIRST_SHARE, UNMEASURED, StepPrices
from sluice.scheduler.drafting.draft_sizer import PROBE_AFTER, PROBE_DRAFTS, DraftSizer, Offer

MOST = 8


class World:
    """Requests whose drafts are accepted with a probability each, on a machine with given times of steps.

    Args:
        micros: by requests and drafts of a step.
    """

    def __init__(self, micros: Callable[[int, int], float], seed: int = 0) -> None:
        self.sizer = DraftSizer(MOST)
        self.micros = micros
        self.random = random.Random(seed)
        self.tokens = self.time = 0.0
        self.drafted: list[int] = []

    def step(self, chances: dict[int, float], match: int = 4) -> list[int]:
        """Run a step of these requests. Return the drafts of each."""
        offers = [Offer(request, MOST, match) for request in chances] if self.sizer.pays(len(chances)) else []
        counts = self.sizer.choose(len(chances), offers) or [0] * len(chances)
        drafts = sum(counts)
        taken = self.micros(len(chances), drafts)
        self.sizer.stepped(len(chances), drafts, round(taken))
        for (request, chance), count in zip(chances.items(), counts, strict=True):
            accepted = 0
            while accepted < count and self.random.random() < chance:
                accepted += 1
            if count:
                self.sizer.verified(request, count, accepted)
            self.tokens += accepted + 1
        self.time += taken
        self.drafted.append(drafts)
        return counts

    def run(self, steps: int, chances: dict[int, float], match: int = 4) -> float:
        """Run steps. Return how many times as fast tokens came as without drafts."""
        tokens, time = self.tokens, self.time
        for _ in range(steps):
            self.step(chances, match)
        return (self.tokens - tokens) / (self.time - time) * self.micros(len(chances), 0) / len(chances)


def of_weights(rows: int, drafts: int) -> float:
    """A machine that reads all weights for a step: a token more costs little."""
    return 2000.0 + 40.0 * (rows + drafts)


def of_products(rows: int, drafts: int) -> float:
    """A machine that computes: a token costs its share."""
    return 100.0 + 200.0 * (rows + drafts)


def slow_to_check(rows: int, drafts: int) -> float:
    """A machine on which every step with drafts takes a slow way."""
    return 1000.0 + 10.0 * (rows + drafts) + (4000.0 if drafts else 0.0)


def test_likely_drafts_are_taken_for_a_lone_request() -> None:
    world = World(of_weights)
    assert world.run(200, {1: 0.95}) > 3.5
    assert world.step({1: 0.95}) == [MOST]


def test_few_are_taken_when_few_are_accepted() -> None:
    """A row had all drafts that were offered, whatever became of them."""
    world = World(of_weights)
    assert world.run(400, {1: 0.3}) > 1.1
    assert 1 <= sum(world.drafted[-100:]) / 100 <= 5


def test_drafts_that_are_never_accepted_cost_almost_nothing() -> None:
    world = World(of_weights)
    assert world.run(1000, {1: 0.0}) > 0.99
    assert world.drafted[-200:].count(0) >= 200 - 200 / PROBE_AFTER


def test_none_are_taken_where_a_token_costs_its_share() -> None:
    """Drafts of a large batch took the time of tokens that were certain."""
    world = World(of_products)
    chances = dict.fromkeys(range(32), 0.9)
    assert world.run(300, chances) > 0.99
    assert sum(world.drafted[-100:]) <= 100 / PROBE_AFTER * PROBE_DRAFTS


def test_the_likely_rows_of_a_batch_have_drafts_and_the_others_none() -> None:
    world = World(of_weights)
    chances = {row: 0.95 if row < 2 else 0.02 for row in range(8)}
    assert world.run(300, chances) > 1.5
    totals = [0] * 8
    for _ in range(50):
        totals = [one + other for one, other in zip(totals, world.step(chances), strict=True)]
    assert min(totals[:2]) > 4 * max(totals[2:])


def test_a_slow_way_to_check_is_seen() -> None:
    """What a draft adds was learnt, and not what all of them add together."""
    world = World(slow_to_check)
    assert world.run(1000, {1: 0.6}) > 0.95
    assert world.drafted[-200:].count(0) >= 198


@pytest.mark.parametrize("gone", [100, 2000])
def test_drafts_come_back_when_they_are_accepted_again(gone: int) -> None:
    """An estimate of 0 stayed so, as nothing was tried any more."""
    world = World(of_weights)
    world.run(gone, {1: 0.0})
    world.run(10 * PROBE_AFTER, {1: 0.95})
    assert world.run(50, {1: 0.95}) > 3


def test_drafts_come_back_when_the_batch_is_small_again() -> None:
    world = World(of_products)
    world.run(300, dict.fromkeys(range(32), 0.9))
    world.micros = of_weights
    assert world.run(100, {1: 0.9}) > 2


def test_another_request_begins_with_what_others_showed() -> None:
    world = World(of_weights)
    world.run(100, {1: 0.0})
    assert world.step({2: 0.0})[0] <= MOST // 2
    world.run(100, {3: 0.9}, match=20)
    assert world.step({4: 0.9}, match=20)[0] > MOST // 2, "long matches are no guide to short ones"
    assert world.step({5: 0.0})[0] <= MOST // 2


def test_a_probe_is_of_one_request_and_few_drafts() -> None:
    world = World(of_weights)
    world.run(300, {1: 0.0, 2: 0.0})
    counts = [world.step({1: 0.0, 2: 0.0}) for _ in range(200)]
    probes = [each for each in counts if any(each)]
    assert 200 / PROBE_AFTER / 2 <= len(probes) <= 200 / PROBE_AFTER
    assert all(sum(each) <= PROBE_DRAFTS and 0 in each for each in probes)


def test_no_row_has_more_than_it_is_offered() -> None:
    sizer = DraftSizer(MOST)
    assert sizer.choose(1, [Offer(1, 2)]) == [2]
    assert sizer.choose(1, []) == []
    assert DraftSizer(3).choose(1, [Offer(1, 8)]) == [3]


def test_a_request_that_ended_is_forgotten() -> None:
    sizer = DraftSizer(MOST)
    sizer.choose(1, [Offer(1, 2)])
    assert sizer.num_requests == 1
    sizer.forget(1)
    sizer.forget(1)
    sizer.verified(1, 2, 1)
    assert sizer.num_requests == 0


def test_equal_calls_give_equal_sizes() -> None:
    one, other = World(of_weights, 3), World(of_weights, 3)
    for _ in range(300):
        chances = {row: 0.1 * row for row in range(1, 9)}
        assert one.step(chances) == other.step(chances)


def test_steps_that_were_not_measured_teach_nothing() -> None:
    prices = StepPrices()
    sizer = DraftSizer(MOST, prices)
    sizer.stepped(1, 4, 0)
    sizer.stepped(0, 0, 100)
    assert prices.price(1) == UNMEASURED


def test_the_price_of_a_draft_is_found_for_each_number_of_requests() -> None:
    prices = StepPrices()
    for number in range(60):
        drafts = number % 6
        prices.add(1, drafts, of_weights(1, drafts))
        prices.add(20, drafts, of_products(20, drafts))
    assert prices.price(1).draft == pytest.approx(40, rel=0.25)
    assert prices.price(1).plain == pytest.approx(2040, rel=0.02)
    assert prices.price(1).base == pytest.approx(2040, rel=0.02)
    assert prices.price(20).draft == pytest.approx(200, rel=0.25)
    assert prices.price(20).plain == pytest.approx(4100, rel=0.05)


def test_a_number_of_requests_that_was_not_seen_goes_by_the_nearest() -> None:
    prices = StepPrices()
    prices.add(4, 0, 1000.0)
    assert prices.price(1) == (1000.0, 1000.0, FIRST_SHARE * 1000.0, 8, True)
    for _ in range(30):
        prices.add(4, 8, 1800.0)
        prices.add(4, 1, 1100.0)
    assert prices.price(1).draft == pytest.approx(100, rel=0.1)
    assert prices.price(1).most == 8, "a step may have twice as many drafts as one was seen with"
    assert prices.price(4).most == 16


def test_a_lone_pause_says_nothing() -> None:
    prices = StepPrices()
    for _ in range(20):
        prices.add(1, 0, 1000.0)
    prices.add(1, 0, 1e6)
    assert prices.price(1).plain < 1300


def test_what_steps_take_without_drafts_is_seen_again() -> None:
    """It was remembered for ever while every step had drafts, though the machine had become slower or faster."""
    prices = StepPrices()
    for _ in range(20):
        prices.add(1, 0, 1000.0)
    seen = []
    for number in range(1, 500):
        wants_plain = prices.price(1).wants_plain
        prices.add(1, 0 if wants_plain else 4, 1900.0 if wants_plain else 2000.0)
        seen += [number] if wants_plain else []
    assert 3 <= len(seen) <= 8
    assert prices.price(1).plain == pytest.approx(1900, rel=0.01)


def test_drafts_make_no_step_shorter() -> None:
    """Noise between steps of 7 and of 8 drafts said that one of 2 is shorter than one of none."""
    prices = StepPrices()
    for number in range(60):
        prices.add(1, 0, 2000.0)
        prices.add(1, 7 + number % 2, 2300.0 + 200 * (number % 2))
        assert prices.price(1).base >= prices.price(1).plain
    assert prices.price(1).of(8) == pytest.approx(2450, rel=0.1)
    for number in range(60):
        prices.add(1, 0, 2000.0)
        prices.add(1, 7 + number % 2, 2300.0 - 200 * (number % 2))
    assert prices.price(1).of(4) == pytest.approx(2200, rel=0.1)


def test_the_first_step_of_a_shape_teaches_nothing() -> None:
    """The capture of a step of so many drafts was taken for its time, and there were no drafts for long."""
    prices = StepPrices()
    for _ in range(5):
        prices.add(1, 0, 1000.0)
    before = prices.price(1)
    for drafts in range(1, 9):
        prices.add(1, drafts, 6000.0)
    assert prices.price(1) == before
    prices.add(1, 4, 1400.0)
    assert prices.price(1).of(4) == pytest.approx(1350, rel=0.1)


def test_a_first_step_that_took_no_longer_teaches() -> None:
    """In large batches hardly two steps have equally many drafts, and none of them counted."""
    prices = StepPrices()
    for _ in range(5):
        prices.add(1, 0, 1000.0)
    for drafts in range(1, 9):
        prices.add(1, drafts, 1000.0 + 100 * drafts)
    assert prices.price(1).of(8) == pytest.approx(1800, rel=0.05)


READ = 100.0
"""What reading a long context costs, in tokens."""


def alone(sizer: DraftSizer, right: int, rows: int, each: float = 1.0) -> list[int]:
    """Return how many drafts so many rows of a long context have, of which at most so many are accepted."""
    counts = []
    for _ in range(rows):
        count = sizer.choose_alone(Offer(1, 6, 4), [READ + each * drafts for drafts in range(1 + MOST)])
        if count:
            sizer.verified(1, count, min(right, count))
        counts.append(count)
    return counts


def test_a_row_of_its_own_has_the_drafts_that_its_cost_says() -> None:
    assert alone(DraftSizer(MOST), right=6, rows=20)[-5:] == [6] * 5
    assert alone(DraftSizer(MOST), right=6, rows=20, each=2 * READ)[0] == 0


def test_a_row_of_its_own_learns_that_its_drafts_are_wrong() -> None:
    """An offloaded request was guessed for wrongly with each token, as nothing was learnt of it."""
    counts = alone(DraftSizer(MOST), right=0, rows=400, each=READ / 4)
    assert counts[0] > 0
    probed = [count for count in counts[-200:] if count]
    assert 200 / PROBE_AFTER / 2 <= len(probed) <= 200 / PROBE_AFTER
    assert max(probed) <= PROBE_DRAFTS

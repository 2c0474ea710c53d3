"""What is learnt of the time that steps take, on machines made of numbers."""

from __future__ import annotations

import random
from collections.abc import Callable
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sluice.scheduler.cost import CostPrior, Ratios, StepCost, StepLoad
from sluice.types import Regime
from timed import MACHINE

COUNTS = st.integers(0, 100_000)


def time_of(load: StepLoad, costs: tuple[float, ...] = MACHINE) -> float:
    step, *rest = costs
    return step + sum(cost * count for cost, count in zip(rest, load, strict=True))


def mixed_load(draw: random.Random) -> StepLoad:
    """A few decodes beside a chunk."""
    rows, length, start = draw.randint(1, 8), draw.choice([8, 16, 64, 128]), draw.randrange(2000)
    return StepLoad(rows, rows, rows * draw.randint(50, 800)).with_chunk(start, length)


def play(cost: StepCost, steps: int, time: Callable[[StepLoad], float], seed: int = 0) -> list[float]:
    """Let it predict and learn mixed steps. Returns the relative errors of its predictions."""
    draw, errors = random.Random(seed), []
    for _ in range(steps):
        load = mixed_load(draw)
        micros = time(load)
        errors.append(abs(cost.predict(Regime.MIXED, load) / micros - 1))
        cost.observe(Regime.MIXED, load, micros)
    return errors


def prior_times(factor: float) -> CostPrior:
    return CostPrior(*(factor * each for each in (15_000.0, 1200.0, 100.0, 0.1, 0.2, 0.001)))


@pytest.mark.parametrize("factor", [0.1, 1.0, 10.0])
def test_a_wrong_prior_is_forgotten(factor: float) -> None:
    """Recursive least squares stayed 90% wrong for ever with a prior ten times too fast."""
    errors = play(StepCost(prior_times(factor)), 130, time_of)
    assert max(errors[30:]) < 0.1
    assert sum(errors[30:]) / 100 < 0.02


def test_the_scale_of_the_prior_matters_to_the_first_step_alone() -> None:
    """A unit that is wrong should not be learnt again by every coefficient."""
    right, wrong = (play(StepCost(prior_times(factor)), 60, time_of) for factor in (1.0, 10.0))
    assert right[1:] == pytest.approx(wrong[1:], abs=1e-6)


def test_a_machine_that_slows_down_is_followed() -> None:
    """A neighbour takes half of the machine: ten steps later predictions must be right again."""
    cost = StepCost(prior_times(1.0))
    play(cost, 150, time_of)
    errors = play(cost, 60, lambda load: 2 * time_of(load), seed=1)
    assert errors[0] > 0.4
    assert max(errors[10:]) < 0.1
    faster = play(cost, 60, time_of, seed=2)
    assert max(faster[15:]) < 0.1


def test_one_pause_is_no_trend() -> None:
    """Another process had the cores for a second: the next steps must not be planned as if that went on."""
    cost = StepCost(prior_times(1.0))
    play(cost, 150, time_of)
    play(cost, 1, lambda load: time_of(load) + 3_000_000)
    errors = play(cost, 20, time_of, seed=3)
    assert errors[0] < 1.0
    assert max(errors[8:]) < 0.1


@pytest.mark.parametrize("micros", [1, 1000])
def test_one_short_measurement_is_no_trend(micros: int) -> None:
    """A step whose time was counted to the one before weighed 20,000 times as much as others: for hundreds of steps
    all were predicted to take next to nothing, and many took nine times the target."""
    cost = StepCost(prior_times(1.0))
    play(cost, 150, time_of)
    play(cost, 1, lambda load: micros, seed=1)
    errors = play(cost, 60, time_of, seed=3)
    assert max(errors) < 0.4
    assert max(errors[8:]) < 0.25


def superlinear() -> StepCost:
    """Costs of a machine whose steps are learnt to cost nothing by themselves: their time rises faster than tokens."""
    cost, draw = StepCost(), random.Random(0)
    for _ in range(60):
        length = draw.choice([16, 64, 256, 1024, 2048])
        cost.observe(Regime.PREFILL, StepLoad().with_chunk(0, length), length**1.5)
    assert cost.costs(Regime.PREFILL)[0] == 0
    return cost


def test_a_step_of_nothing_can_be_learnt_from() -> None:
    """It was predicted to take no time, and the measured time was divided by that: the engine died."""
    cost, load = superlinear(), StepLoad()
    assert cost.predict(Regime.PREFILL, load) > 0
    for _ in range(5):
        cost.observe(Regime.PREFILL, load, 500)
    assert cost.predict(Regime.PREFILL, load) > 0


def test_counts_that_always_rise_together_leave_every_cost_sane() -> None:
    """Tokens, rows and context are proportional in steady decodes. A plain fit gives some of them costs below zero, and
    then more work is predicted to take less time."""
    cost = StepCost(prior_times(1.0))
    for rows in [1, 2, 3, 4] * 25:
        load = StepLoad(rows, rows, 100 * rows)
        cost.observe(Regime.DECODE, load, time_of(load))
    assert all(each >= 0 for each in cost.costs(Regime.DECODE))
    more = StepLoad(8, 8, 800)
    assert cost.predict(Regime.DECODE, more) == pytest.approx(time_of(more), rel=0.1)


@given(
    st.integers(0, 2**32),
    st.tuples(COUNTS, COUNTS, COUNTS, COUNTS, COUNTS, COUNTS),
    st.tuples(COUNTS, COUNTS, COUNTS, COUNTS, COUNTS, COUNTS),
    st.sampled_from(Regime),
)
def test_more_work_is_never_predicted_to_take_less(
    seed: int, counts: tuple[int, ...], more: tuple[int, ...], regime: Regime
) -> None:
    """Whatever it has seen, noise included: a budget would otherwise grow without end."""
    draw, cost = random.Random(seed), StepCost()
    for _ in range(draw.randrange(40)):
        load = StepLoad(*(draw.choice([0, 1, 50, 5000]) for _ in range(6)))
        cost.observe(draw.choice(list(Regime)), load, draw.uniform(1, 1e6))
    growing = [StepLoad(*counts)]
    for index, added in enumerate(more):
        growing.append(growing[-1]._replace(**{StepLoad._fields[index]: growing[-1][index] + added}))
    times = [cost.predict(regime, load) for load in growing]
    assert all(one <= other for one, other in pairwise(times))
    assert times[0] >= 0


def test_kinds_of_steps_do_not_disturb_each_other() -> None:
    """Steps of prefill alone, rare and slow, made mixed ones look slow."""
    cost, draw = StepCost(prior_times(1.0)), random.Random(0)
    for _ in range(100):
        load = mixed_load(draw)
        cost.observe(Regime.MIXED, load, time_of(load))
        cost.observe(Regime.PREFILL, load, 5 * time_of(load))
    load = mixed_load(draw)
    assert cost.predict(Regime.MIXED, load) == pytest.approx(time_of(load), rel=0.05)
    assert cost.predict(Regime.PREFILL, load) == pytest.approx(5 * time_of(load), rel=0.05)


def test_a_kind_never_seen_is_guessed_from_the_others() -> None:
    """The first mixed step of a slow machine was planned by the prior of a fast one."""
    cost = StepCost(prior_times(0.1))
    load = StepLoad(4, 4, 400)
    for _ in range(20):
        cost.observe(Regime.DECODE, load, time_of(load))
    mixed = load.with_chunk(0, 8)
    assert time_of(mixed) / 2 < cost.predict(Regime.MIXED, mixed) < time_of(mixed) * 2


def test_the_margin_covers_the_share_that_is_asked_for() -> None:
    """Of noisy steps, one in twenty may take longer than predicted with the margin, and not one in two."""
    cost, draw, noise = StepCost(prior_times(1.0)), random.Random(4), random.Random(5)
    late = 0
    for step in range(700):
        load = mixed_load(draw)
        micros = time_of(load) * noise.lognormvariate(0.0, 0.15)
        if step >= 200:
            late += micros > cost.predict(Regime.MIXED, load) * cost.margin(Regime.MIXED, 0.95)
        cost.observe(Regime.MIXED, load, micros)
    assert 0.02 < late / 500 < 0.09


def test_another_one_goes_on_from_what_was_learnt() -> None:
    """To the bit: what it predicts next, and after it has learnt more, is what the first one would."""
    cost = StepCost(prior_times(10.0))
    play(cost, 50, time_of)
    other = StepCost(CostPrior(), cost.learnt())
    assert play(other, 30, time_of, seed=7) == play(cost, 30, time_of, seed=7)


@given(st.lists(st.floats(0.1, 10), min_size=1, max_size=300), st.floats(0.01, 1))
def test_quantiles_are_of_the_latest_ratios(values: list[float], share: float) -> None:
    ratios = Ratios()
    for value in values:
        ratios.add(value)
    latest = sorted(ratios.values)
    assert len(latest) == min(100, 21 + len(values))
    assert set(values[-100:]) <= set(latest)
    found = ratios.quantile(share)
    assert sum(each <= found for each in latest) >= share * len(latest)
    assert sum(each < found for each in latest) < share * len(latest)


@pytest.mark.parametrize("bad", [0.0, -1.0, float("inf")])
def test_a_prior_that_says_nothing_is_refused(bad: float) -> None:
    """A cost of 0 could never be scaled to what is measured."""
    with pytest.raises(ValueError, match="every cost must be above 0"):
        CostPrior(token=bad)

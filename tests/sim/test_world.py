"""Times of steps: what is drawn for them is what was measured."""

from __future__ import annotations

from itertools import pairwise
from statistics import fmean

import pytest

from sluice.scheduler.cost import StepLoad
from sluice.scheduler.setup import SchedulerSetup
from sluice.sim.world import Residual, StepWork, World, WorldTimes
from sluice.types import Regime, SchedulerLimits

LIMITS = SchedulerLimits(schedule="mixed", chunked_prefill_size=64, max_batch_tokens=128, max_running_requests=8)
SETUP = SchedulerSetup(LIMITS, num_pages=256, page_size=16)
COSTS = dict.fromkeys(Regime, (1_000_000.0, 0.0, 0.0, 0.0, 0.0, 0.0))
"""A step takes a second, times its ratio."""


def times_of(residuals: list[Residual], seed: int = 0) -> WorldTimes:
    return WorldTimes(World(COSTS, tuple(residuals)), SETUP, seed)


def drawn(times: WorldTimes, regime: Regime, count: int) -> list[float]:
    return [times.ends(StepWork(regime, StepLoad(1, 1, 1)), 0.0) for _ in range(count)]


def test_the_mean_that_is_drawn_is_the_mean_that_was_measured() -> None:
    """A slow step alone among many of another kind would stand for all places around it, and be drawn for each."""
    residuals = [Residual(Regime.DECODE, 1.0 + index % 5 / 10, 0.0) for index in range(300)]
    for index, ratio in ((2, 1.0), (4, 1.1), (6, 0.9), (150, 9.0), (299, 1.0)):
        residuals[index] = Residual(Regime.MIXED, ratio, 0.0)
    times = times_of(residuals)
    for regime in (Regime.DECODE, Regime.MIXED):
        own = [each.ratio for each in residuals if each.regime is regime]
        found = drawn(times, regime, len(own))
        assert sorted(found) == pytest.approx(sorted(own)), "each one once, before any comes again"
        assert fmean(drawn(times, regime, 3 * len(own))) == pytest.approx(fmean(own))


def test_slow_steps_come_together_as_they_did() -> None:
    """Drawn one by one, they would hardly ever meet, and no request would have several of them."""
    residuals = [Residual(Regime.DECODE, 9.0 if 100 <= index < 110 else 1.0, 0.0) for index in range(640)]
    found = drawn(times_of(residuals), Regime.DECODE, 640)
    pairs = sum(one == other == 9.0 for one, other in pairwise(found))
    assert pairs >= 7


def test_a_kind_with_few_steps_has_residuals_of_the_same_kernels_too() -> None:
    """Some slow steps of a cold machine would be drawn again and again. Decodes tell nothing of prompts."""
    residuals = [Residual(Regime.MIXED, 1.0, 0.0)] * 70 + [Residual(Regime.DECODE, 5.0, 0.0)] * 9
    residuals += [Residual(Regime.PREFILL, 2.0, 0.0)] * 10
    times = times_of(residuals)
    assert sorted(drawn(times, Regime.PREFILL, 80)) == pytest.approx([1.0] * 70 + [2.0] * 10)
    assert drawn(times, Regime.MIXED, 80) == pytest.approx([1.0] * 80)
    assert drawn(times, Regime.DECODE, 20) == pytest.approx([5.0] * 20)


def test_a_kind_that_was_not_measured_has_the_residuals_of_the_others() -> None:
    """Without any its steps would be quieter than all others."""
    found = drawn(times_of([Residual(Regime.MIXED, 2.0, 0.0)]), Regime.PREFILL, 3)
    assert found == pytest.approx([2.0] * 3)


def test_what_is_taken_back_is_drawn_again() -> None:
    """A leap that ends before its last step must not lose the residual of that step."""
    residuals = [Residual(Regime.DECODE, 1.0 + index, 0.0) for index in range(200)]
    plain, other = times_of(residuals, 3), times_of(residuals, 3)
    expected = drawn(plain, Regime.DECODE, 150)
    found = []
    for _ in range(150):
        drawn(other, Regime.DECODE, 1)
        other.undo()
        found += drawn(other, Regime.DECODE, 1)
    assert found == expected

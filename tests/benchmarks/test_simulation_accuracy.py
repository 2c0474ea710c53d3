"""Tests for the comparison of simulations with real runs: which figures, and how far off."""

from __future__ import annotations

import pytest

from benchmarks.simulation_accuracy import MIX, Case, Figure, compared, figures
from sluice.scheduler.setup import SchedulerSetup
from sluice.sim.machine import Machine
from sluice.sim.simulate import replicas_of, simulate
from sluice.sim.traces.synthetic import synthetic_arrivals
from sluice.sim.world import World
from sluice.types import Regime, SchedulerLimits

LIMITS = SchedulerLimits(schedule="mixed", chunked_prefill_size=64, max_batch_tokens=256, max_running_requests=32)
SETUP = SchedulerSetup(LIMITS, num_pages=1024, page_size=32)
WORLD = World(dict.fromkeys(Regime, (2000.0, 20.0, 10.0, 0.0, 0.0, 0.0)))
MACHINE = Machine(model="m", name="here", is_measured=True, setup=SETUP, depth=1, world=WORLD)
COMMON = {"num_requests": 20, "request_rate": 6.0, "ignore_eos": True}


def test_a_machine_that_is_its_own_simulation_is_predicted_without_error() -> None:
    """An error of the comparison itself would be taken for one of the simulation."""
    arrivals = synthetic_arrivals({**COMMON, **MIX, "seed": 0}, ms_per_token=None)
    real = simulate(arrivals, replicas_of(SETUP, WORLD))
    found = list(compared(MACHINE, Case("itself", {}, MIX), COMMON, [real, real], [real], 0.01))
    assert [each.name for each in found] == ["E2E mean", "TTFT p95", "ITL over 10 ms"]
    assert figures(real, 0.01)["TTFT p95"] == found[1].median
    assert [(each.error, each.spread) for each in found] == [(0, 0)] * 3
    assert found[0].engine == found[0].real[:1]


def test_shares_are_compared_in_points() -> None:
    """10% of a share of 1% is no error that matters."""
    share = Figure("mix", "ITL over 80 ms", (0.01, 0.03, 0.02), 0.05)
    assert (share.spread, share.error) == (pytest.approx(2), pytest.approx(3))
    assert share.line().endswith("simulated 5.0 %: +3.0 points")
    time = Figure("mix", "E2E mean", (1.0, 3.0, 2.0), 1.5)
    assert (time.spread, time.error) == (pytest.approx(100), pytest.approx(-25))

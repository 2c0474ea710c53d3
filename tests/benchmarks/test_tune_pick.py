"""Tests for the comparison of `sluice tune`'s pick with a measurement of all settings."""

from __future__ import annotations

import pytest

from benchmarks.tune_pick import FIGURES, FIRST, Measured, Verdict, binding, row, table, tune
from sluice.scheduler.setup import SchedulerSetup
from sluice.sim.machine import Machine
from sluice.sim.simulate import replicas_of, simulate
from sluice.sim.traces.synthetic import synthetic_arrivals
from sluice.sim.world import World
from sluice.types import Regime, SchedulerLimits

LIMITS = SchedulerLimits(schedule="mixed", chunked_prefill_size=64, max_batch_tokens=320, max_running_requests=32)
SETUP = SchedulerSetup(LIMITS, num_pages=1024, page_size=32, prefix_caching=False)
WORLD = World(dict.fromkeys(Regime, (2000.0, 30.0, 10.0, 0.0, 0.0, 0.0)))
MACHINE = Machine(model="m", name="here", is_measured=True, setup=SETUP, depth=1, world=WORLD)
TRAFFIC = synthetic_arrivals({"num_requests": 20, "request_rate": 8.0, "prompt_tokens": "400"}, ms_per_token=None)


def test_a_machine_that_is_its_own_simulation_has_the_figures_of_the_simulation() -> None:
    """An error of the comparison would be taken for one of the pick."""
    slo = binding(MACHINE, TRAFFIC)
    tuned = tune(MACHINE, TRAFFIC, slo, repeats=1)
    found = row(FIRST, slo, TRAFFIC, [simulate(TRAFFIC, replicas_of(SETUP, WORLD))], tuned)
    assert found.real == pytest.approx(found.simulated[:1])
    assert len(tuned.outcomes) == 6
    met = sum(each.is_met for each in tuned.outcomes)
    assert 0 < met < 6, "objectives that all or none meet tell no setting from another"
    assert [each.figure for each in slo.objectives] == [each.figure for each in FIGURES.objectives]


def test_the_pick_may_be_as_bad_as_equal_runs_of_the_best_one_differ() -> None:
    """5%, or the spread, if that is larger."""
    best, close, far = (
        Measured({"schedule": name}, real, (1.0,), ({"ttft_p95": 1.0, "itl_p99": 1.0},))
        for name, real in (("mixed", (1.0, 0.98, 1.1)), ("other", (1.1, 1.2, 1.0)), ("third", (1.3, 1.2, 1.2)))
    )
    assert Verdict(best, close).loss == pytest.approx(10)
    assert Verdict(best, close).allowed == pytest.approx(12)
    assert "within 12.0%" in str(Verdict(best, close))
    assert "+20.0%: MORE THAN 12.0%" in str(Verdict(best, far))
    steady = Measured({"schedule": "mixed"}, (1.0, 1.0, 1.0), ())
    assert Verdict(steady, steady).allowed == 5
    rows = table([far, best, close], Verdict(best, close), FIGURES)
    assert [line.split("|")[1].split("`")[1] for line in rows[3:6]] == [
        "--schedule mixed",
        "--schedule other",
        "--schedule third",
    ]
    assert rows[3].endswith("| best |")
    assert rows[4].endswith("| pick |")

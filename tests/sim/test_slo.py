"""Service level objectives as text."""

from __future__ import annotations

import math

import pytest

from sluice.config import ConfigError
from sluice.sim.slo import Figure, parse_slo

TTFT, ITL = Figure("ttft", "p95"), Figure("itl", "p99")


def test_an_objective_is_a_figure_and_a_limit_with_its_unit() -> None:
    """A limit in milliseconds that is taken for seconds is met by everything."""
    slo = parse_slo("ttft_p95<2s, itl_p99<=200ms,e2e_mean<1m")
    assert [(str(each.figure), each.limit) for each in slo.objectives] == [
        ("ttft_p95", 2.0),
        ("itl_p99", 0.2),
        ("e2e_mean", 60.0),
    ]
    assert parse_slo(str(slo)) == slo


@pytest.mark.parametrize(
    "text", ["", "ttft<2s", "ttft_p95<2", "ttft_p95>2s", "speed_p95<2s", "ttft_p0<1s", "ttft_p100<1s", "itl_p99<0ms,"]
)
def test_what_is_no_objective_is_refused_with_an_example(text: str) -> None:
    """A misspelt objective that is ignored is one that every setting meets."""
    with pytest.raises(ConfigError, match="--slo takes"):
        parse_slo(text)


def test_a_figure_has_one_limit() -> None:
    """Of two limits the second would silently win."""
    with pytest.raises(ConfigError, match="ttft_p95 twice"):
        parse_slo("ttft_p95<2s,ttft_p95<3s")


def test_the_worst_objective_is_the_one_that_is_exceeded_by_most() -> None:
    """Absolute differences would always name the longest limit."""
    slo = parse_slo("ttft_p95<2s,itl_p99<200ms")
    assert slo.excess({TTFT: 1.0, ITL: 0.1}) == 0.5
    assert slo.excess({TTFT: 3.0, ITL: 0.4}) == 2.0
    assert slo.worst({TTFT: 3.0, ITL: 0.4}).figure == ITL


def test_figures_are_those_of_the_benchmark() -> None:
    """`sluice bench` and `sluice tune` must mean the same by p95."""
    values = [float(number) for number in range(101)]
    assert Figure("ttft", "p95").of(values) == 95.0
    assert Figure("ttft", "max").of(values) == 100.0
    assert Figure("ttft", "mean").of(values) == 50.0


def test_what_never_comes_counts_only_above_its_place() -> None:
    """A median between two known values is known, however long the third one takes."""
    assert Figure("ttft", "p50").of([1.0, 2.0, math.inf]) == 2.0
    assert Figure("ttft", "p90").of([1.0, 2.0, math.inf]) == math.inf
    assert Figure("ttft", "p75").of([1.0, math.inf, math.inf]) == math.inf

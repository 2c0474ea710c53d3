"""Tests for traffic of days: windows, what is counted in them, and intervals that hold the truth."""

from __future__ import annotations

import math
import random
from collections.abc import Iterable
from dataclasses import replace
from functools import partial

import pytest

from sluice.config import ConfigError
from sluice.scheduler.setup import SchedulerSetup
from sluice.sim.fleet import LocalFleet
from sluice.sim.machine import Machine
from sluice.sim.routers import in_turn
from sluice.sim.simulate import replicas_of, run
from sluice.sim.traces.reading import StreamedRows
from sluice.sim.windows import (
    LatencyHistogram,
    WindowOptions,
    estimates,
    simulate_windows,
    slices_of,
    table,
)
from sluice.sim.workload import Arrival, Prompt, Segment
from sluice.sim.world import Residual, World
from sluice.types import Regime, SchedulerLimits

LIMITS = SchedulerLimits(schedule="mixed", chunked_prefill_size=64, max_batch_tokens=128, max_running_requests=8)
SETUP = SchedulerSetup(LIMITS, num_pages=256, page_size=16)
RESIDUALS = tuple(Residual(Regime.DECODE, 0.6 + index % 9 / 10, 0.001) for index in range(300))
WORLD = World(dict.fromkeys(Regime, (3000.0, 60.0, 100.0, 0.0, 0.0, 0.0)), RESIDUALS)
MACHINE = Machine(model="m", name="here", is_measured=True, setup=SETUP, depth=1, world=WORLD)


def arrivals(seconds: float, rate: float) -> list[Arrival]:
    draw, now, found = random.Random(5), 0.0, []
    while (now := now + draw.expovariate(rate)) < seconds:
        prompt = Prompt((Segment(len(found), draw.randint(8, 120)),))
        output = draw.randint(1, 40)
        found.append(Arrival(time=now, prompt=prompt, output_tokens=output, max_tokens=output))
    return found


def test_intervals_hold_what_the_whole_run_shows() -> None:
    """A sample without its error would be taken for the whole."""
    workload = arrivals(240, 6)
    options = WindowOptions(windows=12, seconds=10, warm_up=4, seed=3)
    results = simulate_windows(slices_of(workload), 240, MACHINE, options, replicas=2)
    found = {each.name: each for each in estimates(results, 10)}
    whole = list(run(workload, LocalFleet(replicas_of(SETUP, WORLD, 2)), in_turn(2)))
    ends = sorted(record.ended - record.due for record in whole)
    mean = sum(ends) / len(ends)
    end_to_end = found["end to end mean"]
    assert end_to_end.low <= mean <= end_to_end.high
    assert found["end to end p95"].low * 0.95 <= ends[int(0.95 * len(ends))] <= found["end to end p95"].high * 1.05
    assert found["requests/s"].value == pytest.approx(6, rel=0.2)
    assert end_to_end.high - end_to_end.low < 0.5 * mean
    assert sum(result.simulated for result in results) < len(whole)
    assert "requests in 12 windows" in table(list(found.values()), results)


def test_processes_and_epochs_change_nothing_for_a_router_that_does_not_look() -> None:
    """Results that depend on the number of processes could not be compared."""
    source = slices_of(arrivals(60, 6))
    options = [
        WindowOptions(windows=3, seconds=6, warm_up=2),
        WindowOptions(windows=3, seconds=6, warm_up=2, processes=2, epoch=1.0),
    ]
    one, other = (simulate_windows(source, 60, MACHINE, each, replicas=3) for each in options)
    assert estimates(one, 6) == estimates(other, 6)


def test_a_histogram_is_right_to_its_resolution() -> None:
    draw, histogram = random.Random(1), LatencyHistogram()
    values = sorted(draw.lognormvariate(-3, 2) for _ in range(5000))
    for value in (0.0, *values):
        histogram.add(value)
    exact = [values[int(share * len(values))] for share in (0.5, 0.95, 0.99)]
    assert histogram.quantiles() == pytest.approx(exact, rel=0.012)
    assert histogram.mean() == pytest.approx(sum(values) / 5001)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"windows": 1, "seconds": 5}, "at least 2, got 1"),
        ({"windows": 9, "seconds": 0}, "more than 0 s, got 0"),
        ({"windows": 9, "seconds": 9, "warm_up": -1}, "got -1"),
        ({"windows": 9, "seconds": 9, "processes": 0}, "--processes must be at least 1"),
        ({"windows": 9, "seconds": 30}, "9 windows of 30 s do not fit into 60 s"),
    ],
)
def test_windows_that_cannot_be(options: dict[str, float], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        simulate_windows(slices_of(arrivals(60, 1)), 60, MACHINE, WindowOptions(**options))  # type: ignore[arg-type]


def test_windows_without_requests_are_said() -> None:
    """Zeros would look like a very fast machine."""
    with pytest.raises(ConfigError, match="no request arrives"):
        simulate_windows(partial(lambda start, end: []), 60, MACHINE, WindowOptions(windows=2, seconds=5))


def test_few_windows_are_noted() -> None:
    """Their intervals look surer than they are."""
    source, few = slices_of(arrivals(60, 1)), WindowOptions(windows=2, seconds=2, warm_up=1)
    results = simulate_windows(source, 60, MACHINE, few)
    assert "fewer than 30 windows" in table(estimates(results, 2), results)
    assert "fewer than" not in table(estimates(results * 15, 2), results * 15)


def test_a_latency_that_no_request_has_is_none() -> None:
    """0 ms would be the best of all figures."""
    workload = [replace(each, output_tokens=1, max_tokens=1) for each in arrivals(60, 2)]
    results = simulate_windows(slices_of(workload), 60, MACHINE, WindowOptions(windows=3, seconds=9, warm_up=1))
    found = {each.name: each for each in estimates(results, 9)}
    assert math.isnan(found["ITL mean"].value)
    assert found["TTFT mean"].low > 0
    rows = [line.split() for line in table(list(found.values()), results).splitlines()]
    assert ["ITL", "p99", "none"] in rows


def stream_of(workload: list[Arrival]) -> StreamedRows[Arrival]:
    return StreamedRows([(each.time, each) for each in workload], lambda row, time: row)


def test_a_file_is_read_and_not_kept() -> None:
    """Windows of a stream are those of a list, margins that overlap included. A day of traffic fits in no memory."""
    workload = arrivals(80, 5)
    options = WindowOptions(windows=4, seconds=8, warm_up=9)
    stream = stream_of(workload)
    one, other = (simulate_windows(source, 80, MACHINE, options) for source in (slices_of(workload), stream))
    assert estimates(one, 8) == estimates(other, 8)
    stream = stream_of(workload)
    assert [each.time for each in stream(10, 12)] == [each.time for each in workload if 10 <= each.time < 12]
    assert [each.time for each in stream(11, 14)] == [each.time for each in workload if 11 <= each.time < 14]
    assert stream(13, 13) == []
    assert [*stream(79, 1000)] == [each for each in workload if each.time >= 79]


def test_no_more_windows_are_read_than_are_simulated() -> None:
    """All of a day would lie in the queue of the processes."""
    read: list[float] = []
    seen: list[int] = []
    whole = slices_of(arrivals(60, 6))

    def source(start: float, end: float) -> Iterable[Arrival]:
        read.append(start)
        return whole(start, end)

    options = WindowOptions(windows=9, seconds=2, warm_up=1, processes=2)
    simulate_windows(source, 60, MACHINE, options, on_end=lambda: seen.append(len(read)))
    assert seen[0] == 4
    assert len(read) == 9

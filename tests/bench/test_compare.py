"""Ratios are right, and intervals cover the truth as often as they say."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from bench_makers import record, result
from sluice.bench.compare import ENOUGH_RUNS, Comparison, Ratio, compare, expanded_tail, interval, table
from sluice.bench.records import Record
from sluice.bench.results import BenchResult


@pytest.fixture(autouse=True)
def _few_resamples(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sluice.bench.compare.RESAMPLES", 1000)


def run(scale: float, *, noise: float = 0.0, rng: random.Random | None = None, kind: str = "short") -> list[Record]:
    """Requests whose every latency is `scale` times that of scale 1."""
    factor = scale * (1 + noise * (rng.uniform(-1, 1) if rng else 0))
    return [
        record(index + factor, index + 1.5 * factor, index + 2.5 * factor, due=float(index), kind=kind)
        for index in range(4)
    ]


def ratio_of(comparison: Comparison, name: str) -> Ratio:
    return next(ratio for ratio in comparison.ratios if ratio.name == name)


def test_ratios_are_of_the_other_to_the_base() -> None:
    found = compare(result(*[run(0.1)] * ENOUGH_RUNS), result(*[run(0.2)] * ENOUGH_RUNS), paired=True)
    for name in ("TTFT p50", "TTFT p99", "TPOT mean", "ITL p99", "ITL max", "end to end p50"):
        ratio = ratio_of(found, name)
        assert ratio.ratio == pytest.approx(2.0), name
        assert (ratio.low, ratio.high) == (pytest.approx(2.0), pytest.approx(2.0))
        assert ratio.is_clear
        assert not ratio.is_better
    assert ratio_of(found, "TTFT p50").base == pytest.approx(0.1)
    speed = ratio_of(found, "output tokens/s")
    assert speed.ratio < 1
    assert not speed.is_better


def test_pairs_cancel_what_slowed_both_of_them() -> None:
    """What A B A B is for: a machine that drifts by a factor of three between the repeats, and two servers of which one
    is a tenth slower."""
    drift = [1.0, 3.0, 2.0, 1.5, 2.5]
    base = result(*[run(0.1 * factor) for factor in drift])
    other = result(*[run(0.11 * factor) for factor in drift])
    paired, unpaired = (ratio_of(compare(base, other, paired=flag), "TTFT p50") for flag in (True, False))
    assert (paired.low, paired.high) == (pytest.approx(1.1), pytest.approx(1.1))
    assert paired.is_clear
    assert unpaired.low is not None
    assert unpaired.high is not None
    assert unpaired.low < 0.8
    assert unpaired.high > 1.4
    assert not unpaired.is_clear


def test_few_runs_call_no_side_better() -> None:
    for count in (1, ENOUGH_RUNS - 1):
        found = compare(result(*[run(0.1)] * count), result(*[run(0.3)] * count))
        assert not any(ratio.is_clear for ratio in found.ratios)


def test_one_run_of_each_resamples_its_requests() -> None:
    found = compare(result(run(0.1)), result(run(0.2)))
    assert found.resampled == "requests"
    ratio = ratio_of(found, "TTFT p50")
    assert ratio.low == pytest.approx(2.0)
    assert "use --repeats" in table(found)


def test_classes_survive_resampling() -> None:
    """One long prompt among many short ones is in no resample a third of the time."""
    mixed = [*run(0.1), record(9.0, 9.5, due=5.0, kind="long")]
    found = compare(result(mixed), result(mixed))
    assert ratio_of(found, "long: TTFT p50").ratio == pytest.approx(1.0)
    assert ratio_of(found, "short: TTFT p50").low == pytest.approx(1.0)


def test_what_cannot_be_divided_is_left_out() -> None:
    bundled = [record((1.0, 4)), record((2.0, 4))]
    found = compare(result(bundled), result(bundled))
    names = {ratio.name for ratio in found.ratios}
    assert "ITL p50" not in names
    assert "TTFT p50" in names


def test_the_interval_covers_the_truth_as_often_as_it_says() -> None:
    """Plain percentiles of a few repeats cover it four times in five."""
    rng = random.Random(7)
    covered = 0
    worlds = 60
    for _ in range(worlds):
        pairs = [(rng.lognormvariate(0, 0.2), 2 * rng.lognormvariate(0, 0.2)) for _ in range(8)]
        drawn = []
        for _ in range(2000):
            chosen = rng.choices(pairs, k=8)
            drawn.append(sum(b for _, b in chosen) / sum(a for a, _ in chosen))
        low, high = interval(drawn, 8)
        assert low is not None
        assert high is not None
        covered += low <= 2.0 <= high
    assert covered / worlds >= 0.9


def test_tails_are_expanded_for_few_and_not_for_many() -> None:
    tails = [expanded_tail(count) for count in (2, 3, 5, 8, 15, 16, 17, 50, 1000)]
    assert tails == sorted(tails)
    assert tails[0] < 1e-6
    assert tails[-1] == pytest.approx(0.025, abs=3e-4)
    assert expanded_tail(10) == pytest.approx(0.0085, abs=2e-4)


def test_too_little_has_no_interval() -> None:
    assert interval([], 5) == (None, None)
    assert interval([1.0], 5) == (None, None)
    assert interval([1.0, 2.0], 1) == (None, None)


def test_workloads_that_differ_are_reported() -> None:
    """Ratios of different workloads are of two things at once."""
    found = compare(result(run(0.1)), result(run(0.1), seed=5, prompt_tokens="9"))
    assert "seed: 0 against 5" in found.differences
    assert "not the same in both: prompt_tokens: '256' against '9'" in table(found)
    assert compare(result(run(0.1)), result(run(0.1))).differences == ()


def test_a_cache_that_knew_one_sides_prompts_is_reported() -> None:
    """A server that was measured before, against one that has just been started."""

    def served(cached: int | None) -> BenchResult:
        return result([replace(each, prompt_tokens=100, cached_tokens=cached) for each in run(0.1)])

    assert compare(served(0), served(96)).differences == ("prompt tokens found in the server's cache: 0% against 96%",)
    assert compare(served(95), served(96)).differences == ()
    assert compare(served(None), served(96)).differences == ()


def test_the_table() -> None:
    found = compare(result(*[run(0.1)] * 5, url="http://a"), result(*[run(0.2)] * 5, url="http://b"), paired=True)
    lines = table(found).splitlines()
    assert lines[0] == "base   toy at http://a (5 runs)"
    line = next(line.split() for line in lines if line.startswith("TTFT p50"))
    assert line == ["TTFT", "p50,", "ms", "100.0", "200.0", "2.000", "2.000", "to", "2.000", "worse"]
    assert "Intervals are resampled over pairs of runs." in lines

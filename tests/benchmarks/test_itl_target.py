"""The benchmark of ITL targets: what it counts, and that its table can be made of it."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import pytest

from benchmarks import itl_target
from benchmarks.itl.measured import Run, Step, errors_of, figures, spread_of
from benchmarks.itl.mixes import MIXES, Asked, requests_of
from sluice.types import Regime


def mixed(micros: int, *, target: int = 100_000, infeasible: bool = False) -> Step:
    return Step(Regime.MIXED, 64, micros, 90_000, target, infeasible)


def run_of(steps: Sequence[Step], *, seconds: float = 10.0) -> Run:
    return Run(seconds, 1000, (0.1, 0.2, 0.3), (1.0, 2.0), tuple(steps), True)


def test_steps_above_a_feasible_target_are_counted() -> None:
    """Decodes that take longer than the target by themselves are no fault of a chunk."""
    steps = [mixed(105_000), mixed(115_000), mixed(130_000), mixed(80_000), mixed(300_000, infeasible=True)]
    found = figures(run_of(steps))
    assert (found["late_10%"], found["late_25%"], found["infeasible_steps"]) == (0.5, 0.25, 1)
    assert found["worst_of_first_50"] == pytest.approx(1.3)
    assert found["tokens_per_second"] == 100


def test_errors_leave_the_first_steps_out() -> None:
    """A cold start is counted by the steps above the target, not by errors."""
    steps = [mixed(1) for _ in range(30)] + [mixed(100_000)] * 5
    assert errors_of(steps) == {"mixed": pytest.approx(0.1)}
    assert spread_of([1.0, 1.0, 1.3, 1.0, 1.0]) == pytest.approx(0.06)


def test_a_target_is_compared_with_the_fastest_chunk_of_its_itl(monkeypatch: pytest.MonkeyPatch) -> None:
    """A larger chunk is always faster: compared with that, every target would lose."""

    def run(case: str, speed: float, p95: float) -> dict[str, Any]:
        return {"mix": "chat", "noisy": False, "case": case, "tokens_per_second": speed, "itl": {"p95": p95}}

    runs = [
        run("target 4x", 110, 0.1),
        run("chunk 32", 80, 0.08),
        run("chunk 64", 100, 0.104),
        run("chunk 128", 130, 1),
    ]
    monkeypatch.setattr(
        itl_target, "CASES", [itl_target.Case(4, None), *(itl_target.Case(None, n) for n in (32, 64, 128))]
    )
    monkeypatch.setattr(itl_target, "TARGETS", (4,))
    (found,) = itl_target.gains(runs)
    assert (found["against"], found["throughput"]) == ("chunk 64", pytest.approx(0.1))


def test_a_target_whose_itl_no_chunk_has_is_compared_with_one_between() -> None:
    """With a smaller chunk, whose gaps are much shorter, any target would win; with a larger one, it would lose."""
    fixed = [itl_target.Fixed(0.1, 80, "chunk 32"), itl_target.Fixed(0.3, 120, "chunk 128")]
    found = itl_target.fixed_of_itl(0.2, fixed)
    assert found == (0.2, pytest.approx(100), "between chunk 32 and 128")
    assert itl_target.fixed_of_itl(0.05, fixed) is None
    assert itl_target.fixed_of_itl(0.102, fixed) == fixed[0]
    assert itl_target.fixed_of_itl(0.9, fixed) == fixed[1]


def test_a_case_is_infeasible_if_most_of_its_steps_were() -> None:
    """Its few other steps said that the target was kept."""
    steps = [mixed(150_000, infeasible=True)] * 3 + [mixed(90_000)] * 2
    assert figures(run_of(steps))["is_infeasible"]
    assert not figures(run_of(steps[2:]))["is_infeasible"]


class Numbers:
    """In the place of a machine: runs that took no time."""

    def run(self, asked: Sequence[Asked], decode: float, **case: Any) -> Run:
        assert asked
        assert (case.get("target") is None) != (case.get("chunk") is None)
        target = 4 * decode if case.get("target") == "auto" else case.get("target") or 0.0
        return run_of([mixed(round(0.9e6 * target) or 100_000, target=round(1e6 * target))] * 80)

    def decode_steps(self, rows: int) -> list[float]:
        return [0.05] * 10


def test_a_record_becomes_a_table(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(itl_target, "_last_processor", lambda: None)  # a neighbour on no processor is none
    machine: Any = Numbers()
    record = itl_target.measure(machine, ["chat", "bursts"], rounds=1, scale=0.1)
    assert len(record["runs"]) == 2 * 2 * 7
    assert set(record["wrong_priors"]) == {"0.1", "1", "10"}
    json.dumps(record)
    itl_target.print_table(record)
    shown = capsys.readouterr().out
    assert "replay equal: True" in shown
    assert shown.count("against chunk") == 16


def test_mixes_differ_in_lengths_and_rate() -> None:
    found = {name: requests_of(mix, 1.0, seed=0) for name, mix in MIXES.items()}
    assert len({max(each.prompt for each in own) for own in found.values()}) == len(MIXES)
    for own in found.values():
        assert [each.at for each in own] == sorted(each.at for each in own)
        assert requests_of(MIXES["chat"], 0.1, seed=1) != requests_of(MIXES["chat"], 0.1, seed=0)

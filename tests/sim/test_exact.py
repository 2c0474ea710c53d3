"""Recorded times and arrivals give the plans of the recorded run; tests/laws/test_lives.py has every kind of life."""

from __future__ import annotations

from pathlib import Path

import pytest

from any_checkpoint import any_checkpoint
from recorded import trace_file
from scenarios import (
    random_scenario,
    run,
)
from sluice.cli import main
from sluice.llm.llm import LLM
from sluice.sim.exact import follow
from sluice.tracing.file import TraceReader
from sluice.types import SamplingParams


def test_a_run_of_a_real_engine_is_planned_alike(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Wall-clock times of a real engine, with an ITL target: what its pacer learns decides what is planned."""
    path = str(tmp_path / "trace.jsonl")
    sampling = [SamplingParams(max_tokens=20 + index, temperature=0, ignore_eos=True) for index in range(6)]
    with LLM(any_checkpoint(), trace=path, itl_target="20ms", page_size=16, max_total_tokens=4096) as llm:
        llm.generate([[40 + index] * (30 + 90 * index) for index in range(6)], sampling)
    assert main(["simulate", path, "--recorded-times"]) == 0
    shown = capsys.readouterr().out
    equal, _, steps = shown.partition(": ")[2].split(" ", 2)
    assert int(equal) > 10
    assert steps.startswith(equal), shown
    page = tmp_path / "report.html"
    assert main(["simulate", path, "--chunked-prefill-size", "64", "--html", str(page)]) == 0
    assert "6 requests, 0 failed" in capsys.readouterr().out
    assert "recorded: half within" in page.read_text(), "the recorded run is laid over its simulation"


def test_another_plan_is_named(tmp_path: Path) -> None:
    """A trace of other settings would be taken for this one."""
    path, scenario = tmp_path / "trace.jsonl", random_scenario(3)
    journal = trace_file(path, scenario.world)
    run(scenario, journal)
    journal.close()
    text = path.read_text().replace('"max_running_requests":', '"max_running_requests":1', 1)
    path.write_text(text.replace('"chunked_prefill_size":', '"chunked_prefill_size":1', 1))
    with TraceReader(path) as trace:
        found = follow(trace)
    assert found.equal < found.steps
    assert found.divergence is not None
    assert "step" in str(found.divergence)

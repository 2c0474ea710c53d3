"""Recorded times and arrivals give the plans of the recorded run, with every schedule, tiers and offloaded parts."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from recorded import trace_file
from scenarios import (
    Scenario,
    random_guess_scenario,
    random_offload_scenario,
    random_reload_scenario,
    random_scenario,
    run,
)
from sluice.cli import main
from sluice.llm.llm import LLM
from sluice.sim.exact import Followed, follow
from sluice.tracing.file import TraceReader
from sluice.tracing.format import TraceError
from sluice.types import SamplingParams


def followed(path: Path, scenario: Scenario) -> Followed | None:
    """What comes of a recorded life; None if the device lost its state in it."""
    journal = trace_file(path, scenario.world)
    run(scenario, journal)
    journal.close()
    with TraceReader(path) as trace:
        try:
            return follow(trace)
        except TraceError:
            return None


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("traces")


@settings(max_examples=60)
@given(seed=st.integers(0, 2**32))
def test_whole_lives_are_planned_alike(folder: Path, seed: int) -> None:
    """Chunks, preemptions, priorities, aborts, grammars and faults, with one to three steps in flight."""
    found = followed(folder / "life.jsonl", random_scenario(seed))
    assert found is None or (found.divergence, found.equal) == (None, found.steps), str(found)


@pytest.mark.parametrize("seed", range(25))
@pytest.mark.parametrize("make", [random_offload_scenario, random_reload_scenario, random_guess_scenario])
def test_lives_with_tiers_are_planned_alike(folder: Path, make: Callable[[int], Scenario], seed: int) -> None:
    """Copies end, and blocks are reported, when they were; the loop wakes for them. Drafts are guessed again, and those
    accepted that were."""
    found = followed(folder / "tiers.jsonl", make(seed))
    assert found is None or (found.divergence, found.equal) == (None, found.steps), str(found)


def test_a_run_of_the_bundled_model_is_planned_alike(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Wall-clock times of a real engine, with an ITL target: what its pacer learns decides what is planned."""
    path = str(tmp_path / "trace.jsonl")
    sampling = [SamplingParams(max_tokens=20 + index, temperature=0, ignore_eos=True) for index in range(6)]
    with LLM(trace=path, itl_target="20ms", page_size=16, max_total_tokens=4096) as llm:
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
    assert followed(path, scenario) is not None
    text = path.read_text().replace('"max_running_requests":', '"max_running_requests":1', 1)
    path.write_text(text.replace('"chunked_prefill_size":', '"chunked_prefill_size":1', 1))
    with TraceReader(path) as trace:
        found = follow(trace)
    assert found.equal < found.steps
    assert found.divergence is not None
    assert "step" in str(found.divergence)

"""The files that `LLM(trace=...)` writes, with the real engine."""

from __future__ import annotations

import json
import stat
from pathlib import Path
from typing import Any

import pytest

from random_checkpoint import random_checkpoint
from sluice import LLM, SamplingParams
from sluice.config import ConfigError
from sluice.tracing.file import TraceReader
from sluice.tracing.replay import Replayed, ReplayError, replay

PROMPTS = ["The river rises over its banks and the sluice gates open.", "The river falls", "Good evening"]
SAMPLING = SamplingParams(max_tokens=6, seed=1, ignore_eos=True)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return random_checkpoint(tmp_path_factory.mktemp("random"))


def llm_of(folder: Path, **options: Any) -> LLM:
    return LLM(folder, max_total_tokens=256, page_size=8, chunked_prefill_size=16, **options)


def lines_of(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def replayed(path: Path) -> Replayed:
    with TraceReader(path) as trace:
        return replay(trace)


@pytest.mark.parametrize("overlap", [False, True])
def test_a_trace_holds_every_step_and_replays(folder: Path, tmp_path: Path, overlap: bool) -> None:
    """With a real model, log-probabilities, several samples and salts."""
    path = tmp_path / "trace.jsonl"
    sampling = [SAMPLING, SamplingParams(max_tokens=4, n=2, logprobs=1, prompt_logprobs=0, seed=2), SAMPLING]
    with llm_of(folder, trace=path, enable_overlap=overlap) as llm:
        results = llm.generate(PROMPTS, sampling, cache_salt=["", "a", "b"])
    with llm_of(folder, enable_overlap=overlap) as plain:
        again = plain.generate(PROMPTS, sampling, cache_salt=["", "a", "b"])
    assert [r.token_ids for r in again] == [r.token_ids for r in results]
    header, *rest = lines_of(path)
    assert (header["kind"], header["depth"], header["token_ids"]) == ("header", 1 + overlap, True)
    assert header["model"] == folder.name
    added = [line["prompt"] for line in rest if line["kind"] == "add"]
    assert added == [list(results[index].prompt_token_ids) for index in (0, 1, 1, 2)]
    steps = [line for line in rest if line["kind"] == "step"]
    for step in steps:
        assert 0 <= step["wait_ms"] <= step["device_ms"] <= (step["ended_at"] - step["launched_at"]) * 1000 + 0.01
        assert step["host_ms"] > 0
    assert sum(len(row) for step in steps for row in step["tokens"]) >= sum(
        len(sample.token_ids) for result in results for sample in result.samples
    )
    found = replayed(path)
    assert (found.divergence, found.steps) == (None, len(steps))
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_without_token_ids_there_are_none(folder: Path, tmp_path: Path) -> None:
    path = tmp_path / "trace.jsonl"
    with llm_of(folder, trace=str(path), trace_token_ids=False) as llm:
        (result,) = llm.generate(PROMPTS[0], SAMPLING)
    header, add, first, *_ = lines_of(path)
    assert header["token_ids"] is False
    assert (add["prompt_len"], "prompt" in add) == (len(result.prompt_token_ids), False)
    assert first["plan"]["chunks"][0][4] == []
    assert "tokens" not in first
    with pytest.raises(ReplayError, match="--no-trace-token-ids"):
        replayed(path)


def test_an_interrupted_llm_leaves_a_whole_trace(folder: Path, tmp_path: Path) -> None:
    """The steps in flight are in the trace too, without their results."""
    path = tmp_path / "trace.jsonl"
    llm = llm_of(folder, trace=path, enable_overlap=True)
    pieces = llm.stream(PROMPTS[0], SAMPLING)
    next(pieces)
    llm.close()
    llm.close()
    *_, last = lines_of(path)
    assert last["kind"] == "step"
    assert "number" not in last
    assert replayed(path).divergence is None
    with pytest.raises(RuntimeError, match="closed"):
        next(pieces)


def test_a_path_that_cannot_be_written_is_refused_before_the_model_is_loaded(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"--trace .*trace cannot be written: No such file or directory"):
        LLM(tmp_path / "no model", trace=tmp_path / "nowhere" / "trace")


def test_options_without_an_effect_are_refused(folder: Path) -> None:
    with pytest.raises(ConfigError, match="--no-trace-token-ids needs a trace"):
        LLM(folder, trace_token_ids=False)
    with pytest.raises(ConfigError, match="--trace must be a text, got 7"):
        LLM(folder, trace=7)

"""The engine in this process as a target: its own thread, its own times, and what happens when it fails."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from any_checkpoint import any_checkpoint
from serving import PATIENCE
from shadow_engine import LIMITS, PAGE_SIZE, VOCAB, shadow_engine
from sluice.bench.driver import Timer, drive, record_of
from sluice.bench.engine_target import EngineTarget, ThreadLink, running
from sluice.bench.measure import measure_engine
from sluice.bench.metrics import summarize
from sluice.bench.options import options_from, resolve_workload
from sluice.bench.records import Record
from sluice.bench.workload import build_workload
from sluice.config import ConfigError
from sluice.testing import Faults


def measured(faults: Faults | None = None, **given: Any) -> list[Record]:
    """A run over the shadow engine."""
    timer = Timer()
    link = ThreadLink(timer)
    target = EngineTarget(link, LIMITS, frozenset(), timer, ignore_eos=True)
    workload = build_workload(resolve_workload(given), vocab_size=VOCAB)

    async def body() -> list[Record]:
        start, attempts = await asyncio.wait_for(drive(target, workload), PATIENCE)
        return [record_of(attempt, start) for attempt in attempts]

    with running(shadow_engine(link, faults), link):
        return asyncio.run(body())


def test_every_token_is_timed() -> None:
    found = measured(num_requests=6, prompt_tokens="uniform:3:40", max_new_tokens=7)
    summary = summarize(found)
    assert (summary.requests, summary.failed, summary.output_tokens) == (6, 0, 42)
    assert summary.cached_tokens == 0
    for record in found:
        assert record.accepted is not None
        assert record.due <= record.sent <= record.arrivals[0].at <= record.arrivals[-1].at == record.ended
        assert [arrival.tokens for arrival in record.arrivals] == [1] * 7


def test_a_conversation_sends_the_ids_it_was_given() -> None:
    """The history must be what was generated, or the prefix cache finds less than in life."""
    first, second = measured(turns=2, num_requests=1, max_new_tokens=4, prompt_tokens="9")
    assert (first.prompt_tokens, second.prompt_tokens) == (9, 9 + 4 + 9)
    assert second.cached_tokens == (9 + 4) // PAGE_SIZE * PAGE_SIZE


def test_a_step_that_fails_fails_its_requests_alone() -> None:
    found = measured(
        Faults(wait_raises=frozenset({1})), num_requests=3, concurrency=1, max_new_tokens=3, prompt_tokens="5"
    )
    assert [record.failure is not None for record in found].count(True) == 1
    failure = next(record.failure for record in found if record.failure)
    assert failure.kind == "engine"
    assert "wait 1" in failure.message


def test_a_prompt_that_does_not_fit_is_a_failed_request() -> None:
    found = measured(num_requests=2, prompt_tokens="999")
    assert [record.failure and record.failure.kind for record in found] == ["engine", "engine"]
    assert "999 tokens" in str(found[0].failure)


def test_an_engine_that_dies_fails_what_is_open_and_what_comes() -> None:
    """Else the measurement waits for ever."""
    timer = Timer()
    link = ThreadLink(timer)
    engine = shadow_engine(link)
    target = EngineTarget(link, LIMITS, frozenset(), timer)

    def die() -> None:
        raise MemoryError("no more")

    engine.step = die  # type: ignore[method-assign]

    async def body() -> list[str]:
        workload = build_workload(
            resolve_workload({"num_requests": 3, "concurrency": 2, "prompt_tokens": "5"}), vocab_size=VOCAB
        )
        _, attempts = await asyncio.wait_for(drive(target, workload), PATIENCE)
        return [str(attempt.exchange.answer().failure) for attempt in attempts]

    with running(engine, link):
        said = asyncio.run(body())
    assert len(said) == 3
    assert all("the engine failed: MemoryError: no more" in message for message in said)


def test_a_model_in_this_process() -> None:
    options = options_from({"num_requests": 3, "prompt_tokens": "8", "max_new_tokens": 4, "ignore_eos": True})
    result = measure_engine(
        {"model": str(any_checkpoint()), "max_total_tokens": 512, "chunked_prefill_size": 64}, options
    )
    assert summarize(result.runs[0].requests).output_tokens == 12
    assert result.target["engine"]["scheduler"]["chunked_prefill_size"] == 64
    assert "torch" in result.versions


def test_engine_options_are_checked() -> None:
    with pytest.raises(ConfigError, match="page_siz"):
        measure_engine({"model": "", "page_siz": 3}, options_from({}))

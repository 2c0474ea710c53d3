"""The real engine over a real model, seen from inside: what its plans hold, and that device state may be lost."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

import tiny_models
from expectations import MAX_TOKENS, Checkpoints, Expected, Prompt
from recording import RecordingRunner
from slow import slow
from sluice.assembly.load import load
from sluice.assembly.loaded import LoadedModel
from sluice.attention.reference import ReferenceAttention
from sluice.config import EngineConfig
from sluice.engine.messages import Submit
from sluice.runner.device_state import DeviceState
from sluice.runner.runner import TorchRunner
from sluice.testing import ManualLink
from sluice.types import SamplingParams

GREEDY = SamplingParams(temperature=0.0, seed=0, max_tokens=MAX_TOKENS)


def loaded(folder: Path, **options: Any) -> LoadedModel:
    return load(EngineConfig.from_options({"model": str(folder), "dtype": "float64"} | options), progress=False)


def empty_runner(model: LoadedModel) -> TorchRunner:
    """A runner whose KV is NaN throughout: memory that was freed and taken again could hold the right values."""
    state = DeviceState(model.shape)
    for layer in state.kv:
        layer.k.fill_(torch.nan)
        layer.v.fill_(torch.nan)
    return TorchRunner(model.model, state, ReferenceAttention())


def greedy(max_tokens: int) -> SamplingParams:
    return SamplingParams(temperature=0.0, seed=0, max_tokens=max_tokens)


@pytest.mark.parametrize("schedule", ["mixed", slow("prefill-first")])
def test_decodes_beside_a_long_prompt(schedule: str, checkpoint: Checkpoints) -> None:
    """Stall-free: while a prompt of 40 chunks is prefilled, MIXED runs all four decodes in every step and gives each a
    token; PREFILL_FIRST runs none until the prompt is done."""
    model = loaded(
        checkpoint("llama"),
        schedule=schedule,
        page_size=8,
        chunked_prefill_size=8,
        max_running_requests=5,
        max_total_tokens=1024,
    )
    link, runner = ManualLink(), RecordingRunner(empty_runner(model))
    engine = model.engine(link, runner)
    short = [tiny_models.prompt(5, seed) for seed in range(4)]
    link.put(*(Submit(i, prompt, greedy(60)) for i, prompt in enumerate(short)))
    while not all(link.tokens(i) for i in range(4)):
        engine.step()
    long = tiny_models.prompt(40 * 8, 9)
    link.put(Submit(4, long, greedy(MAX_TOKENS)))
    before, first = [len(link.tokens(i)) for i in range(4)], len(runner.plans)
    while not link.tokens(4):
        engine.step()

    plans = runner.plans[first:]
    of_long = [[chunk for chunk in plan.chunks if chunk.request_id == 4] for plan in plans]
    assert [(chunk.start, chunk.length) for (chunk,) in of_long] == [(8 * i, 8) for i in range(40)]
    decodes = [{chunk.request_id for chunk in plan.chunks if chunk.length == 1} for plan in plans]
    beside = {0, 1, 2, 3} if schedule == "mixed" else set()
    assert decodes == [beside] * 40
    gained = [len(link.tokens(i)) - count for i, count in enumerate(before)]
    assert gained == [40 if beside else 0] * 4

    while not engine.is_idle:
        engine.step()
    reference = tiny_models.load_reference(checkpoint("llama"), torch.float64)
    for i, (prompt, count) in enumerate([*((prompt, 60) for prompt in short), (long, MAX_TOKENS)]):
        tokens = list(link.tokens(i))
        assert tokens == tiny_models.greedy(reference, prompt, count, tokens)


@pytest.mark.slow
def test_twelve_thousand_tokens_in_two_rounds(tmp_path: Path) -> None:
    """A prompt larger than the step's budget takes 8,192 tokens, then the other 3,808, then decodes; with one prompt
    half computed at a time, one that came later waits behind it."""
    tiny_models.llama(max_position_embeddings=16384, num_hidden_layers=1).save_pretrained(tmp_path)
    model = load(
        EngineConfig.from_options(
            {
                "model": str(tmp_path),
                "chunked_prefill_size": 8192,
                "max_partial_prefills": 1,
                "max_total_tokens": 16384,
                "page_size": 64,
            }
        ),
        progress=False,
    )
    link, runner = ManualLink(), RecordingRunner(model.runner())
    engine = model.engine(link, runner)
    link.put(Submit(0, tiny_models.prompt(12_000), greedy(3)), Submit(1, tiny_models.prompt(100, 1), greedy(1)))
    for _ in range(4):
        engine.step()
    rows = [[(chunk.request_id, chunk.start, chunk.length) for chunk in plan.chunks] for plan in runner.plans]
    assert rows[0] == [(0, 0, 8192)]
    assert rows[1] == [(0, 8192, 3808), (1, 0, 100)]
    assert rows[2:4] == [[(0, 12_000, 1)], [(0, 12_001, 1)]]
    assert len(link.tokens(0)) == 3


def workload(engine_link: ManualLink, prompts: Sequence[Prompt]) -> None:
    engine_link.put(*(Submit(i, prompt, GREEDY) for i, prompt in enumerate(prompts)))


@pytest.mark.parametrize("crash_after", [2, 14, *map(slow, (1, 5, 9, 20, 27))])
def test_device_state_may_be_lost(
    crash_after: int, checkpoint: Checkpoints, expected: Expected, prompts: list[Prompt]
) -> None:
    """Everything a request is lives on the host: with nothing in flight the device's state can be thrown away and
    every request goes on where it was, with the same tokens. That is also recovery from a crash."""
    model = loaded(
        checkpoint("qwen3"), page_size=4, chunked_prefill_size=10, max_running_requests=3, max_total_tokens=512
    )
    link = ManualLink()
    engine = model.engine(link, empty_runner(model))
    workload(link, prompts)
    for _ in range(crash_after):
        engine.step()
    assert not engine.is_idle, "nothing left to lose"
    assert not engine.in_flight
    sent = [link.tokens(i) for i in range(len(prompts))]
    engine.scheduler.forget_device()
    engine.runner = recorder = RecordingRunner(empty_runner(model))
    while not engine.is_idle:
        engine.step()
    assert [list(link.tokens(i)) for i in range(len(prompts))] == [expected("qwen3", prompt) for prompt in prompts]
    assert all(link.tokens(i)[: len(before)] == before for i, before in enumerate(sent))
    assert {new.request_id for plan in recorder.plans for new in plan.new_slots} >= {
        i for i, before in enumerate(sent) if len(before) < MAX_TOKENS
    }


def test_preempted_requests_go_on_as_before(checkpoint: Checkpoints, expected: Expected, prompts: list[Prompt]) -> None:
    """A pool too small for the outputs it admitted: a request is computed again, and gives the same tokens."""
    model = loaded(
        checkpoint("qwen3"),
        page_size=4,
        chunked_prefill_size=10,
        max_running_requests=3,
        max_total_tokens=84,
        schedule_conservativeness=0.0,
    )
    link = ManualLink()
    runner = RecordingRunner(empty_runner(model))
    engine = model.engine(link, runner)
    workload(link, prompts)
    engine.step()
    while not engine.is_idle:
        engine.step()
    admissions = [new.request_id for plan in runner.plans for new in plan.new_slots]
    assert len(admissions) > len(set(admissions)), "no request was preempted"
    assert [list(link.tokens(i)) for i in range(len(prompts))] == [expected("qwen3", prompt) for prompt in prompts]

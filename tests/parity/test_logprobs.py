"""Log-probabilities are those of transformers' own logits, however prompts are cut, cached, batched and preempted."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch

import tiny_models
from expectations import MAX_TOKENS, Checkpoints, Expected, Prompt
from recording import RecordingRunner
from slow import products
from sluice import LLM, SamplingParams
from sluice.assembly.load import load
from sluice.config import EngineConfig
from sluice.engine.messages import Submit
from sluice.testing import ManualLink
from sluice.types import TokenLogprobs

ASKED = SamplingParams(max_tokens=6, temperature=0.0, ignore_eos=True, logprobs=3, prompt_logprobs=2)
CHUNKS = [(1, 1), (1, 7), (16, 16), (16, 17), (16, 47), (16, -1)]
"""(page size, chunk): one token, some, a page, one more, three pages less one, all."""

Exact = Callable[[str, tuple[int, ...]], torch.Tensor]


@pytest.fixture(scope="session")
def exact(checkpoint: Checkpoints) -> Exact:
    """Log-probabilities after each token, [tokens, vocab_size], by transformers in float64."""

    @functools.cache
    def reference(family: str) -> torch.nn.Module:
        return tiny_models.load_reference(checkpoint(family), torch.float64)

    @functools.cache
    def logprobs(family: str, tokens: tuple[int, ...]) -> torch.Tensor:
        return tiny_models.logits(reference(family), tokens).log_softmax(-1)

    return logprobs


def check(
    sent: Sequence[TokenLogprobs], tokens: Sequence[int], logprobs: torch.Tensor, count: int, tolerance: float = 1e-9
) -> None:
    """Check the log-probabilities that were sent; row i of `logprobs` belongs to token i."""
    assert [item.token_id for item in sent] == list(tokens)
    for item, row in zip(sent, logprobs, strict=True):
        best = row.topk(count)
        assert item.logprob == pytest.approx(float(row[item.token_id]), abs=tolerance)
        assert [token for token, _ in item.top] == best.indices.tolist()
        assert [logprob for _, logprob in item.top] == pytest.approx(best.values.tolist(), abs=tolerance)


def check_result(result: Any, logprobs: torch.Tensor) -> None:
    prompt, outputs = result.prompt_token_ids, result.token_ids
    first, *rest = result.prompt_logprobs
    assert first is None
    check(rest, prompt[1:], logprobs[: len(prompt) - 1], 2)
    check(result.logprobs, outputs, logprobs[len(prompt) - 1 : -1], 3)


@products(family=["llama", "gpt2"], cut=CHUNKS)
def test_they_are_transformers_own(
    family: str, cut: tuple[int, int], checkpoint: Checkpoints, exact: Exact, prompts: list[Prompt]
) -> None:
    """Alone and cold; again with the prompt in the cache, of which nothing may come; in a batch, where some decode
    while others are still read, asked for by some and not by others."""
    options: dict[str, Any] = {"page_size": cut[0], "chunked_prefill_size": cut[1], "max_total_tokens": 1024}
    with LLM(checkpoint(family), dtype="float64", **options) as llm:
        for _ in range(2):
            (alone,) = llm.generate([prompts[0]], ASKED)
            check_result(alone, exact(family, prompts[0] + alone.token_ids))
            assert alone.num_cached_tokens == 0
        samplings = [ASKED, replace(ASKED, logprobs=None, prompt_logprobs=None), ASKED, ASKED, ASKED]
        together = llm.generate(prompts, samplings)
    for prompt, sampling, result in zip(prompts, samplings, together, strict=True):
        if sampling is ASKED:
            check_result(result, exact(family, prompt + result.token_ids))
        else:
            assert (result.logprobs, result.prompt_logprobs) == (None, None)


@products(ahead=[(2, 0), (3, 2), (2, 1)], schedule=["mixed", "prefill-first"])
def test_steps_in_flight_change_nothing(
    ahead: tuple[int, int], schedule: str, checkpoint: Checkpoints, exact: Exact, prompts: list[Prompt]
) -> None:
    options: dict[str, Any] = {"page_size": 4, "chunked_prefill_size": 9, "max_total_tokens": 1024}
    options |= {"max_running_requests": 3}
    options |= {"depth": ahead[0], "lookahead": ahead[1], "schedule": schedule}
    with LLM(checkpoint("qwen3"), dtype="float64", **options) as llm:
        for result in llm.generate(prompts, ASKED):
            check_result(result, exact("qwen3", result.prompt_token_ids + result.token_ids))


def test_sampled_tokens_have_the_raw_logprob(checkpoint: Checkpoints, exact: Exact, prompts: list[Prompt]) -> None:
    """Temperature and filters choose the token and do not change its log-probabilities."""
    params = replace(ASKED, temperature=1.7, top_k=5, top_p=0.8, seed=3)
    with LLM(checkpoint("llama"), dtype="float64", max_total_tokens=1024) as llm:
        (result,) = llm.generate([prompts[2]], params)
    logprobs = exact("llama", prompts[2] + result.token_ids)
    check_result(result, logprobs)
    greedy = logprobs[len(prompts[2]) - 1 : -1].argmax(-1).tolist()
    assert list(result.token_ids) != greedy, "nothing but the most likely token was drawn"


def test_float32_is_near(checkpoint: Checkpoints, exact: Exact, prompts: list[Prompt]) -> None:
    with LLM(checkpoint("llama"), dtype="float32", max_total_tokens=1024, page_size=16, chunked_prefill_size=17) as llm:
        (result,) = llm.generate([prompts[0]], replace(ASKED, logprobs=0, prompt_logprobs=0))
    logprobs = exact("llama", prompts[0] + result.token_ids)
    assert result.prompt_logprobs is not None
    assert result.logprobs is not None
    check(result.prompt_logprobs[1:], prompts[0][1:], logprobs[: len(prompts[0]) - 1], 0, 1e-4)
    check(result.logprobs, result.token_ids, logprobs[len(prompts[0]) - 1 : -1], 0, 1e-4)


@products(after=[1, 3, 7, 9, 14], forget=[False, True])
def test_a_preemption_loses_and_repeats_nothing(
    after: int, forget: bool, checkpoint: Checkpoints, exact: Exact, expected: Expected, prompts: list[Prompt]
) -> None:
    """Sent back in the middle of its prompt (7 chunks of 8, then 5) and in the middle of its output."""
    options = {"page_size": 4, "chunked_prefill_size": 8, "max_total_tokens": 512, "dtype": "float64"}
    model = load(EngineConfig.from_options({"model": str(checkpoint("llama"))} | options), progress=False)
    link, runner = ManualLink(), RecordingRunner(model.runner())
    engine = model.engine(link, runner)
    prompt = prompts[0]
    link.put(Submit(0, prompt, replace(ASKED, max_tokens=MAX_TOKENS, seed=0)))
    for _ in range(after):
        engine.step()
    state = engine.scheduler.state
    sent, computed = link.prompt_logprobs(0), state.requests[0].computed
    assert len(sent) == min(computed, 60)
    state.preempt(state.requests[0])
    if forget:
        state.kv.flush()
    recomputed = len(runner.plans)
    while not engine.is_idle:
        engine.step()
    again = [chunk for plan in runner.plans[recomputed:] for chunk in plan.chunks]
    assert again[0].start == (0 if forget else computed // 4 * 4)
    assert sum(len(chunk.targets) for chunk in again) == 60 - len(sent), (
        "logprobs that were sent are not computed again"
    )
    outputs = link.tokens(0)
    assert list(outputs) == expected("llama", prompt)
    logprobs = exact("llama", prompt + outputs)
    check(link.prompt_logprobs(0), prompt[1:], logprobs[: len(prompt) - 1], 2)
    check(link.logprobs(0), outputs, logprobs[len(prompt) - 1 : -1], 3)


def test_questions_about_one_text_are_decided_as_if_alone(checkpoint: Checkpoints, exact: Exact) -> None:
    """Many short ends behind one beginning, as `/v1/decisions` asks for: the beginning is computed once, the ends share
    steps, and in float32 each probability is that of a forward pass over the whole prompt."""
    text, page, count = tiny_models.prompt(70, 1), 16, 24
    ends = [tiny_models.prompt(3 + index % 5, 100 + index) for index in range(count)]
    labels = (7, 3, 11)
    asked = SamplingParams(max_tokens=1, temperature=0.0, ignore_eos=True, logprob_token_ids=labels)
    options: dict[str, Any] = {"page_size": page, "chunked_prefill_size": 64, "max_total_tokens": 4096}
    with LLM(checkpoint("llama"), dtype="float32", **options) as llm:
        found = llm.generate([text + end for end in ends], asked)
    assert sorted(each.num_cached_tokens for each in found) == [0] + [len(text) // page * page] * (count - 1)
    for end, each in zip(ends, found, strict=True):
        assert each.logprobs is not None
        ids, logprobs = zip(*each.logprobs[0].top, strict=True)
        assert ids == labels
        row = exact("llama", text + end)[-1].exp()
        assert [math.exp(logprob) for logprob in logprobs] == pytest.approx([float(row[id]) for id in ids], abs=1e-5)

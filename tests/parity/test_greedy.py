"""Token for token what transformers generates, however the prompt is cut, cached and batched."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import torch

import tiny_models
from expectations import MAX_TOKENS, Checkpoints, Expected, Prompt
from slow import products, slow
from sluice import LLM, SamplingParams

GREEDY = SamplingParams(max_tokens=MAX_TOKENS, temperature=0.0, ignore_eos=True)
CHUNKS = [(1, 1), (1, 7), (16, 16), (16, 17), (16, 47), (16, -1)]
"""(page size, chunk): one token, some, a page, one more, three pages less one, all."""
OTHERS = [name for name in tiny_models.FAMILIES if name not in ("llama", "gpt2")]
CUTS = [
    *(("llama", CHUNKS[0]), ("gpt2", CHUNKS[3]), ("qwen2-windows", CHUNKS[4])),
    *(slow(family, cut) for family in tiny_models.FAMILIES for cut in CHUNKS),
]
TIE = 1e-4
"""In float32 the two largest logits may be this close where the tokens differ."""


def options(page_size: int, chunk: int, **others: Any) -> dict[str, Any]:
    return {"page_size": page_size, "chunked_prefill_size": chunk, "max_total_tokens": 1024} | others


@pytest.mark.parametrize(("family", "cut"), CUTS)
def test_float64_is_transformers_token_for_token(
    family: str, cut: tuple[int, int], checkpoint: Checkpoints, expected: Expected, prompts: list[Prompt]
) -> None:
    """Alone and cold, alone with its prompt in the cache, and in a batch of prompts that share a beginning."""
    with LLM(checkpoint(family), dtype="float64", **options(*cut)) as llm:
        for is_warm in (False, True):
            (alone,) = llm.generate([prompts[0]], GREEDY)
            assert list(alone.token_ids) == expected(family, prompts[0])
            assert (alone.num_cached_tokens > 0) == is_warm
            assert alone.finish_reason == "length"
    with LLM(checkpoint(family), dtype="float64", **options(*cut)) as llm:
        together = llm.generate(prompts, GREEDY)
        assert [list(result.token_ids) for result in together] == [expected(family, prompt) for prompt in prompts]


@pytest.mark.parametrize("cut", [(16, 17), slow((1, 7))])
@pytest.mark.parametrize("family", ["llama", "gpt2", *(slow(name) for name in OTHERS)])
def test_float32_differs_at_ties_only(
    family: str, cut: tuple[int, int], checkpoint: Checkpoints, prompts: list[Prompt]
) -> None:
    exact = tiny_models.load_reference(checkpoint(family), torch.float64)
    reference = tiny_models.load_reference(checkpoint(family), torch.float32)
    with LLM(checkpoint(family), dtype="float32", **options(*cut)) as llm:
        results = llm.generate(prompts, GREEDY)
    for prompt, result in zip(prompts, results, strict=True):
        theirs = tiny_models.generate(reference, prompt, MAX_TOKENS)
        same = [*itertools.takewhile(lambda pair: pair[0] == pair[1], zip(result.token_ids, theirs, strict=True))]
        if len(same) < MAX_TOKENS:
            logits = tiny_models.logits(exact, (*prompt, *theirs[: len(same)]))[-1]
            best, second = logits.topk(2).values.tolist()
            assert best - second < TIE, f"token {len(same)} differs without a tie"


@products(family=["llama", "gpt2"], ahead=[(3, 2), (2, 0), (2, 1), (3, 1), (1, 0)], schedule=["mixed", "prefill-first"])
def test_steps_in_flight_change_nothing(
    family: str,
    ahead: tuple[int, int],
    schedule: str,
    checkpoint: Checkpoints,
    expected: Expected,
    prompts: list[Prompt],
) -> None:
    """With lookahead a decode's input never leaves the device; keeps out reading it a step too early or too late."""
    depth, lookahead = ahead
    asked = options(4, 9, depth=depth, lookahead=lookahead, schedule=schedule, max_running_requests=3)
    with LLM(checkpoint(family), dtype="float64", **asked) as llm:
        for _ in range(2):
            results = llm.generate(prompts, GREEDY)
            assert [list(result.token_ids) for result in results] == [expected(family, prompt) for prompt in prompts]


@pytest.mark.parametrize("caching", [True, False])
def test_a_pool_too_small_for_all_changes_nothing(
    caching: bool, checkpoint: Checkpoints, expected: Expected, prompts: list[Prompt]
) -> None:
    """Requests that wait for pages, or lose them and compute them again, give the same tokens."""
    asked = options(4, 9, enable_prefix_caching=caching) | {"max_total_tokens": 80}
    with LLM(checkpoint("llama"), dtype="float64", **asked) as llm:
        results = llm.generate(prompts, GREEDY)
    assert [list(result.token_ids) for result in results] == [expected("llama", prompt) for prompt in prompts]
    assert caching or {result.num_cached_tokens for result in results} == {0}


@pytest.mark.parametrize(
    ("ours", "theirs"),
    [
        ({"repetition_penalty": 1.7}, {"repetition_penalty": 1.7}),
        slow({"repetition_penalty": 0.6}, {"repetition_penalty": 0.6}),
        (
            {"min_tokens": 9, "stop_token_ids": tuple(range(3, 60))},
            {"min_new_tokens": 9, "eos_token_id": list(range(3, 60))},
        ),
    ],
)
def test_adjusted_logits_are_those_of_transformers(
    ours: dict[str, Any], theirs: dict[str, Any], checkpoint: Checkpoints, prompts: list[Prompt]
) -> None:
    """A prompt that comes from the cache, in chunks, beside others: its tokens count for the penalty all the same."""
    reference = tiny_models.load_reference(checkpoint("llama"), torch.float64)
    params = SamplingParams(max_tokens=MAX_TOKENS, temperature=0.0, ignore_eos=True, **ours)
    wanted = [tiny_models.generate(reference, prompt, MAX_TOKENS, **theirs) for prompt in prompts]
    with LLM(checkpoint("llama"), dtype="float64", **options(4, 8, enable_overlap=True)) as llm:
        for _ in range(2):
            results = llm.generate(prompts, params)
            assert [list(result.token_ids) for result in results] == wanted
    assert wanted != [tiny_models.generate(reference, prompt, MAX_TOKENS) for prompt in prompts], "nothing changed"

"""Needles through the engine, with known answers, for any depth, dtype, chunks, other requests and cache."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
import transformers

from benchmarks.exact_recall import EOS, SHAPES, Needle, needle_prompt, needle_prompts, write_recall_checkpoint
from slow import slow
from sluice import LLM, SamplingParams

GREEDY = SamplingParams(temperature=0.0, max_tokens=8)
DEPTHS = (0.0, 0.25, 0.5, 0.75, 1.0, None)
MARGIN = 13.0
"""Logits between the answer and the next best; 26.6 were constructed."""


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    root = tmp_path_factory.mktemp("recall")
    return {name: write_recall_checkpoint(root / name, shape) for name, shape in SHAPES.items()}


@pytest.mark.parametrize(
    ("name", "dtype"),
    [
        ("small", "bfloat16"),
        ("gqa", "float32"),
        slow("small", "float32"),
        slow("middle", "float32"),
        slow("middle", "bfloat16"),
        slow("gqa", "bfloat16"),
    ],
)
def test_needles_are_found(name: str, dtype: str, folders: dict[str, Path]) -> None:
    """A page, a chunk's edge, a KV head or a position mixed up: what followed the key is read from elsewhere. All at
    once, in chunks; then again, from the cache; EOS where there is no needle."""
    lengths = [1000, 1000, 2000, 1000, 8000 if name == "middle" else 3000, 500]
    needles = [
        needle_prompt(SHAPES[name], length, depth, seed=index)
        for index, (length, depth) in enumerate(zip(lengths, DEPTHS, strict=True))
    ]
    with LLM(folders[name], dtype=dtype, max_total_tokens=20_000, chunked_prefill_size=512) as llm:
        for _ in range(2):
            results = llm.generate([needle.prompt for needle in needles], GREEDY)
            assert [result.token_ids for result in results] == [needle.answer for needle in needles]
        assert all(result.num_cached_tokens > 400 for result in results)


def test_margin_of_every_answer(folders: dict[str, Path]) -> None:
    """An answer that is right by a hair would be wrong on other machines."""
    needle = needle_prompt(SHAPES["small"], 4000, 0.3)
    with LLM(folders["small"], dtype="bfloat16", max_total_tokens=5000) as llm:
        (result,) = llm.generate(needle.prompt, replace(GREEDY, logprobs=2))
    assert result.token_ids == needle.answer
    assert result.logprobs is not None
    for logprob in result.logprobs:
        (best, first), (_, second) = logprob.top
        assert best == logprob.token_id
        assert first - second > MARGIN


def test_transformers_agrees(folders: dict[str, Path]) -> None:
    """A checkpoint that only we can read, or an answer that only we get: logits of both are the same."""
    needle = needle_prompt(SHAPES["gqa"], 700, 0.5, seed=3)
    model = transformers.AutoModelForCausalLM.from_pretrained(folders["gqa"], dtype=torch.float32)
    known = torch.tensor([[*needle.prompt, *needle.answer]])
    with torch.no_grad():
        logits = model(known).logits[0, -len(needle.answer) - 1 : -1]
    assert tuple(logits.argmax(-1).tolist()) == needle.answer
    with LLM(folders["gqa"], dtype="float32", max_total_tokens=2000) as llm:
        (result,) = llm.generate(needle.prompt, replace(GREEDY, logprobs=5))
    assert result.logprobs is not None
    theirs = logits.log_softmax(-1)
    for logprob, row in zip(result.logprobs, theirs, strict=True):
        assert [row[token].item() for token, _ in logprob.top] == pytest.approx(
            [each for _, each in logprob.top], abs=0.05
        )


@pytest.mark.parametrize(("previous", "depth"), [(1, 0.5), (2, 0.0), (2, 1.0), (4, 0.7), (2, None)])
def test_key_is_unique(previous: int, depth: float | None) -> None:
    """A second occurrence of the key, or of what it becomes on the way, has another answer."""
    shape = replace(SHAPES["gqa"], previous=previous, vocab_size=24)
    needle = needle_prompt(shape, 3000, depth, answer_len=5, seed=1)
    assert len(needle.prompt) == 3000
    key = needle.prompt[-previous:]
    found = _starts(needle.prompt, key)
    if depth is None:
        assert found == [3000 - previous]
        assert needle.answer == (EOS,)
        return
    start, end = found
    assert end == 3000 - previous
    assert needle.prompt[start + previous :][:5] == needle.answer
    assert start == 1 + round(depth * (3000 - 1 - 2 * previous - 5))
    text = key + needle.answer
    for offset in range(1, 5):
        assert _starts(needle.prompt, text[offset : offset + previous]) == [start + offset]


def test_prompts_that_cannot_be_are_refused() -> None:
    """A needle longer than its haystack would be cut and its answer not there."""
    shape = SHAPES["small"]
    with pytest.raises(ValueError, match="length must be from 13 to 1048576 tokens, got 12"):
        needle_prompt(shape, 12, 0.5)
    with pytest.raises(ValueError, match="depth must be from 0 to 1, or None, got"):
        needle_prompt(shape, 100, 1.5)
    with pytest.raises(ValueError, match="answer_len must be from 1 to 251 for 1 needles, got 0"):
        needle_prompt(shape, 100, 0.5, answer_len=0)


def test_prompts_share_all_but_the_question() -> None:
    """A cached prefix that serves all questions saves reading a long prompt again for each depth."""
    shape = SHAPES["gqa"]
    needles = needle_prompts(shape, 3000, DEPTHS, answer_len=5, seed=2)
    assert len({needle.prompt[: -shape.previous] for needle in needles}) == 1
    assert len({needle.prompt for needle in needles}) == len(DEPTHS)
    for needle, depth in zip(needles, DEPTHS, strict=True):
        text = needle.prompt[-shape.previous :] + needle.answer
        expected = [] if depth is None else [1 + round(depth * (3000 - 1 - 2 * shape.previous - 5))]
        assert _starts(needle.prompt[: -shape.previous], text[: shape.previous]) == expected
        assert _starts(needle.prompt, text) == expected
    with pytest.raises(ValueError, match="needles of 12 tokens overlap"):
        needle_prompts(shape, 100, [0.5, 0.55])


def test_another_seed_is_another_prompt() -> None:
    """A seed that is not used: all prompts would share one cached prefix."""
    first, again, other = (needle_prompt(SHAPES["small"], 100, 0.5, seed=seed) for seed in (1, 1, 2))
    assert first == again != other
    assert isinstance(first, Needle)
    assert all(isinstance(token, int) and not isinstance(token, np.integer) for token in first.prompt)


def _starts(tokens: tuple[int, ...], run: tuple[int, ...]) -> list[int]:
    return [index for index in range(len(tokens)) if tokens[index : index + len(run)] == run]

"""Long prompts in models whose layers have recurrent states: token for token what transformers generates in float64,
from cached prefixes, after preemption, and where prompts part; and the same text whatever the cuts, in float32.

What all families have in common is in `test_family_lives.py`, with prompts shorter than the distance of two records.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

import tiny_families
import tiny_models
from recording import RecordingRunner
from slow import slow
from sluice import LLM, SamplingParams
from sluice.assembly.load import load
from sluice.config import EngineConfig
from sluice.testing import ManualLink
from sluice.types import Submit

MAX_TOKENS = 12
GREEDY = SamplingParams(max_tokens=MAX_TOKENS, temperature=0.0, ignore_eos=True, seed=0)
FIRST = tiny_models.prompt(151)
PROMPTS = [FIRST, FIRST[:133] + tiny_models.prompt(8, 2), FIRST[:133] + tiny_models.prompt(9, 3)]
FAMILIES = [
    family if family in ("lfm2", "qwen3.5") else slow(family)
    for family in tiny_families.FAMILIES
    if family in tiny_families.WITH_STATES
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    @functools.cache
    def saved(family: str) -> Path:
        path = tmp_path_factory.mktemp(family)
        tiny_families.FAMILIES[family](max_position_embeddings=2048).save_pretrained(path)
        return path

    return saved


@pytest.mark.parametrize("family", FAMILIES)
def test_cached_prefixes(family: str, folder: Callable[[str], Path]) -> None:
    """The first prompt again, then two that part from it: the second of these goes on where the first has parted."""
    with LLM(folder(family), dtype="float64", page_size=16, max_total_tokens=1024) as llm:
        found = [llm.generate([list(PROMPTS[number])], GREEDY)[0] for number in (0, 0, 1, 2)]
    assert [result.num_cached_tokens for result in found] == [0, 128, 128, 128]
    reference = tiny_families.load_reference(folder(family), torch.float64)
    for number, result in zip((0, 0, 1, 2), found, strict=True):
        tokens = list(result.token_ids)
        assert tokens == tiny_models.greedy(reference, PROMPTS[number], MAX_TOKENS, tokens)


@pytest.mark.parametrize("family", FAMILIES)
def test_a_preempted_request_goes_on_from_its_state(family: str, folder: Callable[[str], Path]) -> None:
    asked: dict[str, Any] = {"page_size": 16, "chunked_prefill_size": 48, "max_running_requests": 3}
    asked |= {"max_total_tokens": 288, "schedule_conservativeness": 0.0, "enable_prefix_caching": True}
    options = {"model": str(folder(family)), "dtype": "float64"} | asked
    model = load(EngineConfig.from_options(options), progress=False)
    link, runner = ManualLink(), RecordingRunner(model.runner())
    engine = model.engine(link, runner)
    prompts = [tiny_models.prompt(100, 5), tiny_models.prompt(100, 6)]
    long = SamplingParams(max_tokens=75, temperature=0.0, ignore_eos=True, seed=0)
    link.put(*(Submit(number, tuple(prompt), long) for number, prompt in enumerate(prompts)))
    engine.step()
    while not engine.is_idle:
        engine.step()
    opened = [new for plan in runner.plans for new in plan.new_slots]
    again = [new.cached for new in opened[len(prompts) :]]
    assert again, "no request was preempted"
    assert any(again), "none went on from a record"
    reference = tiny_families.load_reference(folder(family), torch.float64)
    for number, prompt in enumerate(prompts):
        tokens = list(link.tokens(number))
        assert tokens == tiny_models.greedy(reference, prompt, 75, tokens)


CHATS = [("lfm2", 3, 12), *(slow(family, 10, 40) for family in tiny_families.WITH_STATES)]
NEW = 150
"""Tokens of a question."""


@pytest.mark.parametrize(("family", "turns", "answer"), CHATS)
def test_a_chat_reads_the_same_whatever_the_cuts(
    family: str, turns: int, answer: int, folder: Callable[[str], Path]
) -> None:
    """With the cache and without, in chunks of any length, with drafts, and with steps that overlap; and it finds as
    much in the cache as a model finds all of whose layers have keys and values, but for a few tokens."""
    cold = chat(
        folder(family), turns, answer, enable_prefix_caching=False, chunked_prefill_size=1000, max_batch_tokens=1100
    )
    assert not any(cached for _, cached in cold)
    ways: Sequence[dict[str, Any]] = (
        {"chunked_prefill_size": 1000, "max_batch_tokens": 1100},
        {"chunked_prefill_size": 64},
        {"chunked_prefill_size": 7, "page_size": 4},
        {"chunked_prefill_size": 1, "page_size": 1},
        {"chunked_prefill_size": 16, "page_size": 16, "enable_overlap": True},
        {"chunked_prefill_size": 65, "speculative_algorithm": "ngram"},
        {"enable_prefix_caching": False, "speculative_algorithm": "ngram"},
    )
    for way in ways:
        warm = chat(folder(family), turns, answer, **way)
        assert [text for text, _ in warm] == [text for text, _ in cold], way
        by_pages = sum(_reusable(turn, answer) for turn in range(turns))
        if way.get("enable_prefix_caching", True):
            assert sum(cached for _, cached in warm) >= (0.95 if turns == 10 else 0.8) * by_pages, way


def _reusable(turn: int, answer: int) -> int:
    """Return the tokens that the prompt of a turn shares with what was computed before, in pages of the usual size."""
    return max(0, turn * (NEW + answer) - 1) // 32 * 32


def chat(folder: Path, turns: int, answer: int, **options: Any) -> list[tuple[list[int], int]]:
    """Return the answer of each turn, and how much of its prompt was cached."""
    sampling = SamplingParams(max_tokens=answer, temperature=0.0, ignore_eos=True, seed=0)
    history: list[int] = []
    found = []
    with LLM(folder, dtype="float32", **({"max_total_tokens": 2048} | options)) as llm:
        for turn in range(turns):
            history += tiny_models.prompt(NEW, turn)
            result = llm.generate([history], sampling)[0]
            found.append((list(result.token_ids), result.num_cached_tokens))
            history += result.token_ids
    return found

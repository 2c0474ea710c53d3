"""What a row asks for beside the forward is the same for a context longer than the KV pool as for a resident one."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

import tiny_models
from drafted import KnownDrafter
from slow import slow
from sluice import LLM, SamplingParams
from sluice.llm.outputs import Result, Sample
from sluice.types import TokenLogprobs
from worlds import assert_same_logprobs

PROMPTS = [tiny_models.prompt(length, seed) for length, seed in ((450, 1), (333, 2), (40, 3), (91, 4))]
"""Two that the pool does not hold, and two that it does."""
RANDOM = {"max_tokens": 10, "temperature": 1.3, "ignore_eos": True}
PARAMS = [
    SamplingParams(**RANDOM, seed=5, n=2, logprobs=2, prompt_logprobs=2),
    SamplingParams(**RANDOM, seed=6, presence_penalty=0.7, frequency_penalty=0.4, repetition_penalty=1.3, logprobs=0),
    SamplingParams(**RANDOM, seed=7, repetition_penalty=1.2, prompt_logprobs=1),
    SamplingParams(**RANDOM, seed=8, top_k=20, min_p=0.01, logprobs=1, logit_bias=((3, 2.0),)),
]
MODES = [
    slow({"depth": 1, "ring_blocks": 3, "chunked_prefill_size": 32}),
    {"depth": 2, "lookahead": 1, "ring_blocks": 4, "chunked_prefill_size": 64},
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("llama")
    tiny_models.llama(head_dim=16).save_pretrained(folder)
    return folder


def engine(folder: Path, **options: Any) -> LLM:
    """In float64, so that no tie is decided by the order of a sum."""
    return LLM(folder, **{"dtype": "float64", "page_size": 8, "chunked_prefill_size": 32} | options)


def offloading(folder: Path, pages: Path, **options: Any) -> LLM:
    """An engine whose pool holds none of the long prompts."""
    return engine(
        folder, max_total_tokens=256, kv_disk=str(pages), kv_disk_bytes=16 << 20, ring_block_tokens=16, **options
    )


@pytest.fixture(scope="module")
def resident(folder: Path) -> Sequence[Result]:
    with engine(folder, max_total_tokens=4096) as llm:
        return llm.generate(PROMPTS, PARAMS)


@pytest.mark.parametrize("mode", MODES)
def test_offloaded_rows_are_sampled_and_scored_as_resident_ones(
    mode: dict[str, Any], folder: Path, resident: Sequence[Result], tmp_path: Path
) -> None:
    """Noise of another position, tokens that no penalty counts, and log-probabilities of the token beside, for one
    request or for all that share its step."""
    with offloading(folder, tmp_path / "pages", **mode) as llm:
        found = llm.generate(PROMPTS, PARAMS)
    for result, expected in zip(found, resident, strict=True):
        assert [sample.token_ids for sample in result.samples] == [sample.token_ids for sample in expected.samples]
        for one, other in zip(result.samples, expected.samples, strict=True):
            assert_same_logprobs(logprobs_of(one), logprobs_of(other))
        assert_same_logprobs(prompt_logprobs_of(result), prompt_logprobs_of(expected))


def test_drafts_of_offloaded_rows_change_no_answer(folder: Path, resident: Sequence[Result], tmp_path: Path) -> None:
    """Their samples lie behind those of the resident rows, and what was rejected is stored nowhere."""
    known = [sample.token_ids for result in resident for sample in result.samples]
    drafts = {"speculative_algorithm": "ngram", "speculative_num_steps": 4, "depth": 2, "lookahead": 1}
    with offloading(folder, tmp_path / "pages", ring_blocks=4, **drafts) as llm:
        drafter = KnownDrafter(dict(enumerate(known)))
        llm._open_engine().scheduler.state.drafter = drafter
        found = llm.generate(PROMPTS, PARAMS)
    assert [sample.token_ids for result in found for sample in result.samples] == known
    for result, expected in zip(found, resident, strict=True):
        for one, other in zip(result.samples, expected.samples, strict=True):
            assert_same_logprobs(logprobs_of(one), logprobs_of(other))
    assert drafter.offloaded > 2
    assert 5 < drafter.accepted < drafter.drafted


def logprobs_of(sample: Sample) -> Sequence[TokenLogprobs]:
    return sample.logprobs or ()


def prompt_logprobs_of(result: Result) -> Sequence[TokenLogprobs]:
    """Of all tokens of the prompt but the first; none if they were not asked for."""
    return [item for item in result.prompt_logprobs or () if item is not None]


def test_an_offloaded_prompt_is_found_after_a_restart_under_its_salt_alone(folder: Path, tmp_path: Path) -> None:
    """A page that is stored without its salt is another tenant's to find, and no longer its owner's."""
    greedy = SamplingParams(max_tokens=4, temperature=0.0, ignore_eos=True)
    with offloading(folder, tmp_path / "pages") as llm:
        (before,) = llm.generate(PROMPTS[:1], greedy, cache_salt="mine")
    with offloading(folder, tmp_path / "pages") as llm:
        found = {
            salt: llm.generate(PROMPTS[:1], greedy, cache_salt=salt)[0].num_cached_tokens
            for salt in ("", "theirs", "mine")
        }
        (after,) = llm.generate(PROMPTS[:1], greedy, cache_salt="mine")
    assert found == {"": 0, "theirs": 0, "mine": 448}
    assert after.token_ids == before.token_ids

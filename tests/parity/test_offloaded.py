"""Requests longer than the KV pool, through the whole engine: what comes out is what comes out of a large pool."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import pytest
import torch

import tiny_models
from slow import slow
from sluice import LLM, SamplingParams
from sluice.llm.outputs import Result

GREEDY = SamplingParams(max_tokens=12, temperature=0.0, ignore_eos=True)
LONG = [tiny_models.prompt(300, 1), tiny_models.prompt(270, 2)]
SHORT = [tiny_models.prompt(40, 3), tiny_models.prompt(90, 4)]
SIZES = {"page_size": 8, "chunked_prefill_size": 32}
TIE = 1e-4
"""In float32 the two largest logits may be this close where the tokens differ."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("llama")
    tiny_models.llama(head_dim=16).save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def resident(folder: Path) -> list[list[int]]:
    with LLM(folder, dtype="float32", max_total_tokens=2048, **SIZES) as llm:
        return [list(result.token_ids) for result in llm.generate([*LONG, *SHORT], GREEDY)]


def streaming(folder: Path, pages: Path, **options: Any) -> LLM:
    """An engine whose pool holds none of the long prompts."""
    options = SIZES | {"max_total_tokens": 256, "kv_disk_bytes": 8 << 20, "dtype": "float32"} | options
    return LLM(folder, kv_disk=str(pages), **options)


def assert_same(folder: Path, found: list[Result], expected: list[list[int]]) -> None:
    """Token for token, but for ties."""
    exact = tiny_models.load_reference(folder, torch.float64)
    for prompt, result, theirs in zip([*LONG, *SHORT], found, expected, strict=True):
        assert result.finish_reason == "length", result
        same = [*itertools.takewhile(lambda pair: pair[0] == pair[1], zip(result.token_ids, theirs, strict=True))]
        if len(same) < len(theirs):
            start = len(same)
            logits = exact(torch.tensor([[*prompt, *theirs[:start]]])).logits[0, -1]
            gap = logits[theirs[start]] - logits[result.token_ids[start]]
            assert abs(float(gap)) <= TIE, f"{result.token_ids} is not {theirs}, by {gap}"


@pytest.mark.parametrize(
    ("ring_blocks", "ring_block_tokens", "page_size", "others"),
    [
        slow(2, 16, 8, {}),
        (3, 8, 8, {"depth": 2, "lookahead": 1}),
        slow(8, 32, 16, {"schedule": "prefill-first"}),
        (1, 64, 16, {"model_impl": "transformers"}),
    ],
)
def test_beside_ordinary_requests(
    ring_blocks: int,
    ring_block_tokens: int,
    page_size: int,
    others: dict[str, Any],
    folder: Path,
    resident: list[list[int]],
    tmp_path: Path,
) -> None:
    """Two long prompts and two short ones at once: steps in which parts of the one kind run beside the other."""
    ring = {"ring_blocks": ring_blocks, "ring_block_tokens": ring_block_tokens, "page_size": page_size}
    with streaming(folder, tmp_path / "pages", **ring, **others) as llm:
        assert_same(folder, llm.generate([*LONG, *SHORT], GREEDY), resident)


def test_prefixes_are_read_where_they_lie(folder: Path, resident: list[list[int]], tmp_path: Path) -> None:
    """A long prompt that was served before, by this engine or the one before it, is not computed again, and none of its
    pages is brought to the device."""
    for _ in range(2):
        with streaming(folder, tmp_path / "pages", ring_block_tokens=16) as llm:
            first = llm.generate(LONG, GREEDY)
            again = llm.generate(LONG, GREEDY)
        assert [list(result.token_ids) for result in (*first, *again)] == [*resident[:2], *resident[:2]]
        assert [result.num_cached_tokens for result in again] == [296, 264]
    assert [result.num_cached_tokens for result in first] == [296, 264], "the second engine found them"


def test_memory_is_what_was_predicted(folder: Path, tmp_path: Path) -> None:
    """Device memory that grows with the context, or that is not counted."""
    with streaming(folder, tmp_path / "pages", ring_blocks=4, ring_block_tokens=16) as llm:
        before = llm.memory_report()
        llm.generate(LONG[:1], GREEDY)
        after, short, long = llm.memory_report(), llm.memory_report(300), llm.memory_report(500)
    parts = ("device_kv_bytes", "pool_bytes", "ring_bytes")
    assert [before[part] for part in parts] == [after[part] for part in parts]
    assert [long[part] for part in parts] == [after[part] for part in parts]
    assert before["ring_bytes"] == 4 * 16 * 2 * 2 * 16 * 4
    assert long["disk_bytes"] - short["disk_bytes"] == 25 * 8 * 3 * 2 * 2 * 16 * 4
    assert {**long, "disk_bytes": 0} == {**short, "disk_bytes": 0}


def test_what_the_tier_cannot_hold_is_refused(folder: Path, tmp_path: Path) -> None:
    """A request that could never be served must not wait for ever; the message says how much is missing."""
    with (
        streaming(folder, tmp_path / "pages", kv_disk_bytes=400_000) as llm,
        pytest.raises(ValueError, match=rf"the tier behind the KV pool has \d+ bytes .* need {512 * 768} "),
    ):
        llm.generate([tiny_models.prompt(500, 1)], SamplingParams(max_tokens=12))


def test_a_window_forgets_the_middle(folder: Path, resident: list[list[int]], tmp_path: Path) -> None:
    """The policy reaches the runner: the first token, made by the prompt's last chunk, is exact, and what follows is
    made of less."""
    with streaming(folder, tmp_path / "pages", sparse_policy="window:8:8", ring_block_tokens=8) as llm:
        (result,) = llm.generate(LONG[:1], GREEDY)
    assert result.token_ids[0] == resident[0][0]
    assert list(result.token_ids) != resident[0]


@pytest.mark.parametrize("has_disk", [False, slow(True)])
def test_host_memory_behind_a_pool_that_is_capped(
    has_disk: bool, folder: Path, resident: list[list[int]], tmp_path: Path
) -> None:
    """Long contexts in host memory on a CPU, or behind it on the disk, beside short prompts that come back from host
    memory: pages of one tier that are looked for on the other."""
    options: dict[str, Any] = SIZES | {"max_total_tokens": 256, "kv_host_bytes": 1 << 20, "dtype": "float32"}
    if has_disk:
        options |= {"kv_disk": str(tmp_path / "pages"), "kv_disk_bytes": 8 << 20}
    with LLM(folder, ring_block_tokens=16, **options) as llm:
        assert_same(folder, llm.generate([*LONG, *SHORT], GREEDY), resident)
        again = [llm.generate([prompt], GREEDY)[0] for prompt in (LONG[0], SHORT[1])]
        report = llm.memory_report(500)
    assert [list(result.token_ids) for result in again] == [resident[0], resident[3]]
    assert (again[0].num_disk_tokens if has_disk else again[0].num_host_tokens) == 296
    assert again[1].num_cached_tokens == 88
    assert bool(report["disk_bytes"]) is has_disk
    assert bool(report["host_bytes"]) is not has_disk

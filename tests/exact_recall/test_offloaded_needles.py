"""Needles in contexts longer than the device: the KV of every position passes through a file and a ring."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from benchmarks.exact_recall import SHAPES, needle_prompts, write_recall_checkpoint
from benchmarks.exact_recall.fillers import among_fillers
from slow import slow
from sluice import LLM, SamplingParams
from sluice.config import ConfigError

GREEDY = SamplingParams(temperature=0.0, max_tokens=8)
DEPTHS = (0.0, 0.25, 0.5, 0.75, 1.0, None)
LENGTH, SHORTER = 3000, 2008
"""With an answer of 8 tokens, whole pages; and longer than the device."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_recall_checkpoint(tmp_path_factory.mktemp("recall"), SHAPES["small"])


@pytest.mark.parametrize("ring", [(2, 64), slow((3, 128)), slow((8, 64))])
def test_needles_beyond_the_device(ring: tuple[int, int], folder: Path, tmp_path: Path) -> None:
    """A block read into the wrong slot, or merged twice: the token behind the key is another one. Beside a prompt that
    fits the device; the second question finds the prompt on the tier."""
    blocks, tokens = ring
    options: dict[str, Any] = {"kv_disk": tmp_path / "pages", "kv_disk_bytes": 16 << 20, "page_size": 16}
    options |= {"max_total_tokens": 1536, "offload_above": 1024, "ring_blocks": blocks, "ring_block_tokens": tokens}
    needles = needle_prompts(SHAPES["small"], SHORTER, DEPTHS, seed=blocks)
    ordinary = needle_prompts(SHAPES["small"], 600, [0.4], seed=blocks)
    with LLM(folder, dtype="bfloat16", max_running_requests=4, chunked_prefill_size=256, **options) as llm:
        first = llm.generate([needle.prompt for needle in (needles[0], *ordinary)], GREEDY)
        later = llm.generate([needle.prompt for needle in needles[1:]], GREEDY)
    results = [first[0], *later, first[1]]
    assert [result.token_ids for result in results] == [needle.answer for needle in (*needles, *ordinary)]
    assert all(result.num_cached_tokens > SHORTER - 100 for result in later)


def test_memory_does_not_grow(folder: Path, tmp_path: Path) -> None:
    """A buffer that is made as long as the context."""
    options: dict[str, Any] = {"kv_disk": tmp_path / "pages", "kv_disk_bytes": 16 << 20, "page_size": 16}
    with LLM(folder, dtype="bfloat16", max_total_tokens=1536, offload_above=1024, **options) as llm:
        short, long = llm.memory_report(1025), llm.memory_report(4100)
        assert {name: short[name] for name in short if name != "disk_bytes"} == {
            name: long[name] for name in long if name != "disk_bytes"
        }
        assert long["ring_bytes"] > 0
        assert long["disk_bytes"] > 3.9 * short["disk_bytes"] * 0.98
        (needle,) = needle_prompts(SHAPES["small"], 4100, [0.5])
        (result,) = llm.generate(needle.prompt, GREEDY)
        assert result.token_ids == needle.answer
        now = llm.memory_report()
        assert now["disk_bytes"] == (tmp_path / "pages").stat().st_size >= long["disk_bytes"]
        assert now | {"disk_bytes": long["disk_bytes"]} == long
        assert llm.memory_report(1000)["disk_bytes"] == 0


def test_quest_finds_needles_with_a_tenth_of_the_pages(folder: Path, tmp_path: Path) -> None:
    """A page with the needle that its bounds do not select, or that is not loaded. The second engine has its pages from
    the file, and their bounds from what passes through the ring."""
    options: dict[str, Any] = {"kv_disk": tmp_path / "pages", "kv_disk_bytes": 16 << 20, "page_size": 16}
    options |= {"max_total_tokens": 1536, "offload_above": 1024, "ring_blocks": 3, "ring_block_tokens": 128}
    needles = among_fillers(SHAPES["small"], needle_prompts(SHAPES["small"], LENGTH, DEPTHS[:-1], seed=4))
    for _ in range(2):
        with LLM(folder, dtype="bfloat16", chunked_prefill_size=256, sparse_policy="quest:512:1", **options) as llm:
            assert llm.memory_report()["bounds_bytes"] == 0
            results = llm.generate([needle.prompt for needle in needles], GREEDY)
            allocated, predicted = llm.memory_report()["bounds_bytes"], llm.memory_report(LENGTH + 8)["bounds_bytes"]
        assert [result.token_ids for result in results] == [needle.answer for needle in needles]
        assert predicted == (LENGTH + 8) // 16 * 2 * 64 * 2, "keys of one layer, the least and the greatest"
        assert predicted <= allocated <= len(needles) * predicted * 9 / 8


def test_quest_begins_at_a_layer_that_there_is(folder: Path, tmp_path: Path) -> None:
    """A policy that selects in no layer of a small model, and is taken for one that does."""
    with pytest.raises(ConfigError, match=r"quest:512 selects pages from layer 2 on, but the model has layers 0 to 1"):
        LLM(
            folder, kv_disk=tmp_path / "pages", kv_disk_bytes=16 << 20, max_total_tokens=1536, sparse_policy="quest:512"
        )

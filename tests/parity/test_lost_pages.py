"""Bits that flip in the page file while contexts longer than the pool are served from it change no answer."""

from __future__ import annotations

import logging
import random
from array import array
from pathlib import Path

import pytest

import tiny_models
from sluice import LLM, SamplingParams
from sluice.kv.nodes import Node, copies_of
from sluice.storage.page_file_format import decode_header

GREEDY = SamplingParams(max_tokens=6, temperature=0.0, ignore_eos=True)
PROMPTS = [tiny_models.prompt(300, 1), tiny_models.prompt(270, 2)]
OPTIONS = {
    "page_size": 8,
    "chunked_prefill_size": 32,
    "max_total_tokens": 256,
    "kv_disk_bytes": 8 << 20,
    "ring_block_tokens": 16,
    "dtype": "float32",
}


def flip(path: Path, at: int, mask: int) -> None:
    with path.open("r+b") as file:
        file.seek(at)
        (byte,) = file.read(1)
        file.seek(at)
        file.write(bytes([byte ^ mask]))


def stored_pages(llm: LLM, prompt: list[int]) -> list[int]:
    """The pages of the file that a request with this prompt reads."""
    found: list[Node] = []
    tree = llm._open_engine().scheduler.state.kv.tree
    tree.match_any(found, array("i", prompt), len(prompt) - 1, "")
    return [copies_of(node).pages[0] for node in found]


def failed_loads(llm: LLM) -> int:
    (tier,) = llm._open_engine().scheduler.occupancy().tiers
    return tier.failed_loads


def test_a_flipped_bit_is_counted_and_logged_and_changes_no_answer(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """It ended its request with an error, and its retry found nothing cached."""
    caplog.set_level(logging.WARNING, "sluice.engine")
    folder, pages, draw = tmp_path / "llama", tmp_path / "pages", random.Random(0)
    tiny_models.llama(head_dim=16).save_pretrained(folder)
    with LLM(folder, kv_disk=str(pages), **OPTIONS) as llm:
        expected = [result.token_ids for result in llm.generate(PROMPTS, GREEDY)]
        caplog.clear()
        layout = decode_header(pages.read_bytes()[: 1 << 16])
        for count in range(1, 4):
            prompt = draw.choice(PROMPTS)
            held = stored_pages(llm, prompt)
            index = draw.randrange(len(held))
            part = layout.part_at(held[index], draw.randrange(layout.geometry.num_layers))
            flip(pages, part + draw.randrange(2 * layout.geometry.part_bytes), 1 << draw.randrange(8))
            found = llm.generate(PROMPTS, GREEDY)
            assert [result.token_ids for result in found] == expected
            assert failed_loads(llm) == count
            assert len(caplog.messages) == count
            assert caplog.messages[-1].endswith("; a request that needs it computes it again")
        again = llm.generate(PROMPTS, GREEDY)
        assert [result.num_cached_tokens for result in again] == [296, 264], "all of it was stored again"

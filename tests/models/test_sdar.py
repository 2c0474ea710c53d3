"""SDAR's model: a Qwen3 whose queries see all of their own block."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

import diffusion_reference
import tiny_models
from paged import Row, empty_kv, forward_batch
from sluice.attention.reference import ReferenceAttention
from sluice.models.checkpoint import CheckpointError
from sluice.models.loader import load_model
from sluice.models.spec import BlockDiffusion

PAGE_SIZE = 16


@pytest.mark.parametrize("block_size", [1, 2, 4, 8, 16])
def test_chunks_of_whole_blocks_give_the_logits_of_the_whole(block_size: int, tmp_path: Path) -> None:
    """A block that was seen causally, or that saw the next one."""
    folder = tiny_models.save_sdar(tmp_path, block_size)
    prompt = tiny_models.prompt(80)
    expected = diffusion_reference.logits(diffusion_reference.load(folder, torch.float64), prompt, block_size)
    model, spec = load_model(folder, dtype="float64", device=torch.device("cpu"), progress=False)
    assert spec.diffusion == BlockDiffusion(block_size, tiny_models.MASK_TOKEN)
    attention, pages = ReferenceAttention(), [3, 0, 4, 1, 2]
    kv = [empty_kv(5, PAGE_SIZE, spec.num_kv_heads, spec.head_dim, torch.float64) for _ in range(spec.num_layers)]
    found = []
    for start, end in ((0, 16), (16, 48), (48, 48 + block_size), (48 + block_size, 80)):
        row = Row(prompt[start:end], start, pages, logits=range(end - start))
        found.append(model.logits(model.forward(forward_batch([row], PAGE_SIZE), kv, attention)))
    torch.testing.assert_close(torch.cat(found), expected, rtol=1e-9, atol=1e-9)


def test_a_config_without_block_and_mask_has_those_of_sdar(tmp_path: Path) -> None:
    """The first published checkpoints name neither."""
    folder = tiny_models.save_sdar(tmp_path, block_size=None, mask_token_id=None)
    with pytest.raises(CheckpointError, match="mask_token_id must be below vocab_size = 131, got 151669"):
        load_model(folder, dtype="float32", device=torch.device("cpu"), progress=False)


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"block_size": 0}, "block_size must be an integer of at least 1, got 0"),
        ({"mask_token_id": 131}, "mask_token_id must be below vocab_size = 131, got 131"),
        ({"use_sliding_window": True}, "use_sliding_window must be false for this architecture, got True"),
    ],
)
def test_refused(changes: dict[str, Any], problem: str, tmp_path: Path) -> None:
    folder = tiny_models.save_sdar(tmp_path, **changes)
    with pytest.raises(CheckpointError, match=problem):
        load_model(folder, dtype="float32", device=torch.device("cpu"), progress=False)

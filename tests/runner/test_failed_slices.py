"""What a step gives whose offloaded chunk fails: the rows of the others, each in its place."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

import tiny_models
from offloaded import Driver
from paged import empty_kv
from sluice.attention.base import LayerKV
from sluice.attention.reference import ReferenceAttention
from sluice.models.loader import load_model
from sluice.runner.device_state import DeviceShape
from sluice.runner.offload.offloader import RingShape
from sluice.runner.offload.rows import SlicedWork, SliceRunners, run_slices
from sluice.types import Chunk, ChunkSlice


def plain(shape: DeviceShape) -> LayerKV:
    return empty_kv(shape.num_pages, shape.page_size, shape.num_kv_heads, shape.head_dim, shape.dtype)


@pytest.mark.parametrize(
    ("asked", "samples", "embeds", "targets"),
    [
        ({"samples": True}, 1, 0, 0),
        ({"samples": True, "num_drafts": 3}, 4, 0, 0),
        ({"samples": True, "targets": (5, 6)}, 1, 0, 2),
        ({"samples": False, "embeds": True}, 0, 1, 0),
    ],
)
def test_a_chunk_that_fails_leaves_its_neighbours_their_rows(
    asked: dict[str, Any], samples: int, embeds: int, targets: int, tmp_path: Path
) -> None:
    """Rows are counted off: one too few, and a request has the tokens of another."""
    tiny_models.llama().save_pretrained(tmp_path)
    model, spec = load_model(tmp_path, dtype="float64", device=torch.device("cpu"), progress=False)
    shape = DeviceShape.of(spec, torch.device("cpu"), num_slots=1, num_pages=4, page_size=4, row_pages=4)
    driver = Driver.of(model, shape, ReferenceAttention(), plain, RingShape(2, 1))
    chunk = Chunk(0, 0, start=0, length=4, token_ids=(1, 2, 3, 4), new_pages=(), **asked)
    lost = ChunkSlice(chunk, stored_pages=(), base=0, pages=(0,), first=1, stop=2, total=2, is_decode=True)
    others = torch.arange(4.0, dtype=torch.float64)[:, None].expand(4, 1)
    done = run_slices(SliceRunners(driver.offloader), SlicedWork(0, (), (lost,)), others, (2, 1, 1))
    assert [error.row for error in done.errors] == [0]
    assert done.hidden is not None
    nan = float("nan")
    expected = [0.0, 1.0, *[nan] * samples, 2.0, *[nan] * embeds, 3.0, *[nan] * targets]
    torch.testing.assert_close(
        done.hidden, torch.tensor(expected, dtype=torch.float64)[:, None].expand_as(done.hidden), equal_nan=True
    )

"""Blocks of GGUF stand for the very numbers that llama.cpp's own package makes of them."""

from __future__ import annotations

import warnings

import gguf
import numpy as np
import pytest
import torch

from sluice.models.block_types import BLOCK_TYPES, group_weight

KNOWN = [kind for kind in BLOCK_TYPES if kind not in ("Q1_0", "Q2_0")]
"""All but two that llama.cpp has, and that its package does not dequantise."""


def any_blocks(kind: str, count: int) -> np.ndarray:
    """Return random bytes: every scale occurs, negative ones, subnormal ones, infinities and no numbers too."""
    size = gguf.GGML_QUANT_SIZES[gguf.GGMLQuantizationType[kind]][1]
    return np.random.default_rng(size).integers(0, 256, (count, size), dtype=np.uint8)


@pytest.mark.parametrize("kind", KNOWN)
def test_values_are_those_of_the_library(kind: str) -> None:
    """One input that is swapped with its neighbour makes every product wrong, and shows in no sum."""
    blocks = any_blocks(kind, 3000)
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        wanted = gguf.dequantize(blocks, gguf.GGMLQuantizationType[kind])
    ours = group_weight(kind, torch.from_numpy(blocks)).dense(torch.float32).numpy()
    is_number = ~np.isnan(wanted)
    assert is_number.mean() > 0.5
    np.testing.assert_array_equal(np.isnan(ours), ~is_number)
    np.testing.assert_array_equal(ours.view(np.uint32)[is_number], wanted.view(np.uint32)[is_number])


@pytest.mark.parametrize("kind", [*KNOWN, "Q1_0"])
def test_sizes_are_those_of_the_library(kind: str) -> None:
    """A file says a type by its number, and its size follows from that."""
    of_library, block = gguf.GGMLQuantizationType[kind], BLOCK_TYPES[kind]
    assert (block.id, (block.inputs, block.size)) == (int(of_library), gguf.GGML_QUANT_SIZES[of_library])


@pytest.mark.parametrize("exponent", [0, 1, 2, 127, 255])
def test_scales_of_powers_of_two(exponent: int) -> None:
    """The smallest two are subnormal, and the largest is no infinity."""
    blocks = np.full((1, 17), 0x21, dtype=np.uint8)
    blocks[0, 0] = exponent
    assert group_weight("MXFP4", torch.from_numpy(blocks)).scales.item() == 2.0 ** (exponent - 128)


@pytest.mark.parametrize(
    ("kind", "numbers"),
    [
        ("Q2_0", [-1, 0, 1, 2, 2, 1, 0, -1] + [-1] * 56),
        ("Q1_0", [-1, -1, 1, -1, -1, 1, 1, 1, 1, 1, -1, 1, 1, -1, -1, -1] + [-1] * 112),
    ],
)
def test_neighbours_lie_side_by_side_in_a_byte(kind: str, numbers: list[int]) -> None:
    """Unlike in other types. llama.cpp's package does not know these values; they are those of its C."""
    block = np.zeros(18, dtype=np.uint8)
    block[:2] = np.array([0.5], dtype=np.float16).view(np.uint8)
    block[2:4] = 0b11_10_01_00, 0b00_01_10_11
    found = group_weight(kind, torch.from_numpy(block[None])).dense(torch.float32)[0]
    assert (2 * found).tolist() == numbers


def test_rows_stay_apart() -> None:
    """A row of several blocks is the blocks' values one behind the other."""
    blocks = torch.from_numpy(any_blocks("Q4_0", 6))
    blocks[:, :2] = torch.tensor([0.5], dtype=torch.float16).view(torch.uint8)
    each = group_weight("Q4_0", blocks).dense(torch.float32)
    assert torch.equal(group_weight("Q4_0", blocks.view(2, -1)).dense(torch.float32), each.view(2, -1))

"""The block types of GGUF files against llama.cpp's own dequantisation."""

from __future__ import annotations

import gguf
import pytest
import torch

from block_makers import random_blocks
from sluice.models.block_types import BLOCK_TYPES, group_weight


@pytest.mark.parametrize("kind", BLOCK_TYPES)
def test_every_bit_is_that_of_the_library(kind: str) -> None:
    """Inputs in another order, a high bit of another input, scales without their sign."""
    inputs = BLOCK_TYPES[kind].inputs
    blocks = random_blocks(kind, 3000, inputs)
    wanted = torch.from_numpy(gguf.dequantize(blocks.numpy(), gguf.GGMLQuantizationType[kind]))
    got = group_weight(kind, blocks).dense(torch.float32)
    assert torch.equal(got, wanted)


@pytest.mark.parametrize("kind", BLOCK_TYPES)
def test_sizes_are_those_of_the_library(kind: str) -> None:
    """A file says a type by its number, and its size follows from that."""
    of_library = gguf.GGMLQuantizationType[kind]
    block = BLOCK_TYPES[kind]
    assert (block.id, (block.inputs, block.size)) == (int(of_library), gguf.GGML_QUANT_SIZES[of_library])


def test_exponents_at_both_ends() -> None:
    """The smallest scales of MXFP4 are below the normal numbers of float32, and the largest has no further bit."""
    blocks = random_blocks("MXFP4", 256, 32)
    blocks[:, 0], blocks[:, 1:] = torch.arange(256), 0x11
    wanted = torch.from_numpy(gguf.dequantize(blocks.numpy(), gguf.GGMLQuantizationType.MXFP4))
    assert torch.equal(group_weight("MXFP4", blocks).dense(torch.float32), wanted)

"""Products with weights as a GGUF file stores them, at every level, against their definition in torch."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
import torch

from block_makers import random_blocks
from compiled import library
from sluice.kernels.cpu.library import Kernels, Level
from sluice.models.block_types import BLOCK_TYPES
from sluice.models.grouped import grouped_linear
from sluice.models.grouped_layers import GroupedLinear, PackedBlocks, StoredEmbedding, pack_blocks
from sluice.models.stored_blocks import StoredBlocks

LIBRARY = library()
ROWS = (1, 2, 3, 6, 7, 12, 13, 33, 270)
SHAPES = {
    32: ((33, 96), (64, 576), (5, 32)),
    64: ((33, 192), (64, 576), (5, 64)),
    128: ((33, 128), (64, 640)),
    256: ((33, 256), (64, 768)),
}
"""By the inputs of a block: outputs and inputs."""


def normal(*size: int, seed: int) -> torch.Tensor:
    return torch.randn(size, generator=torch.Generator().manual_seed(seed))


def packed(kernels: Kernels, *weights: StoredBlocks) -> Sequence[PackedBlocks]:
    return [pack_blocks(kernels, weight) for weight in weights]


@pytest.mark.parametrize("level", LIBRARY.levels())
@pytest.mark.parametrize("kind", BLOCK_TYPES)
@torch.inference_mode()
def test_every_bit_is_as_defined(level: Level, kind: str) -> None:
    """Bits of another input or output, a scale of another group, an incomplete last block, and sums that are rounded
    once more or that saturate."""
    for outputs, inputs in SHAPES[BLOCK_TYPES[kind].inputs]:
        weight = StoredBlocks(kind, random_blocks(kind, outputs, inputs))
        bias = normal(outputs, seed=2).bfloat16() if outputs != 64 else None
        kernels = Kernels(LIBRARY, level, 2)
        layer = GroupedLinear(kernels, packed(kernels, weight), bias)
        for rows in ROWS if outputs == 33 else ROWS[:4]:
            # Strided rows: part of the output of a wider layer.
            x = normal(rows, inputs + 6, seed=rows).bfloat16()[:, 3 : inputs + 3]
            x[0, 5] *= 50
            wanted = grouped_linear(x, weight.group_weight(), bias)
            assert torch.equal(layer(x), wanted), f"{outputs} x {inputs}, {rows} rows"


@pytest.mark.parametrize("level", LIBRARY.levels())
@pytest.mark.parametrize("kind", BLOCK_TYPES)
@torch.inference_mode()
def test_any_bytes_are_computed_as_defined(level: Level, kind: str) -> None:
    """Scales that are infinite, no numbers or the smallest ones, and rows of zeros or of numbers far from one."""
    kernels, draw = Kernels(LIBRARY, level, 1), torch.Generator().manual_seed(7)
    block = BLOCK_TYPES[kind]
    size = 512 // block.inputs * block.size
    weight = StoredBlocks(kind, torch.randint(0, 256, (47, size), generator=draw, dtype=torch.uint8))
    layer = GroupedLinear(kernels, packed(kernels, weight), None)
    for exponent in (-25, -12, 4):
        x = (torch.randn(5, 512, generator=draw) * 10.0**exponent).bfloat16()
        x[1], x[2, :40] = 0.0, -0.0
        wanted = grouped_linear(x, weight.group_weight(), None)
        for rows in (1, 5):
            assert torch.allclose(layer(x[:rows]), wanted[:rows], rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("level", LIBRARY.levels())
@pytest.mark.parametrize("kind", BLOCK_TYPES)
@torch.inference_mode()
def test_the_largest_numbers_do_not_saturate(level: Level, kind: str) -> None:
    """Sums in 16 bits where the instruction has no others."""
    kernels = Kernels(LIBRARY, level, 1)
    for byte in (0xFF, 0x00, 0x80, 0x7F):
        blocks = random_blocks(kind, 32, 512, tame=True)
        first = {
            "Q4_K": 16,
            "Q5_K": 16,
            "Q5_1": 4,
            "Q4_1": 4,
            "MXFP4": 1,
            "IQ4_XS": 8,
            "Q6_K": 0,
            "Q2_K": 16,
            "NVFP4": 4,
            **dict.fromkeys(("Q3_K", "TQ1_0", "TQ2_0", "IQ1_M"), 0),
        }
        end = {"Q6_K": 192, "Q2_K": 80, "Q3_K": 96, "TQ1_0": 52, "TQ2_0": 64, "IQ1_M": 48}.get(kind)
        per_block = blocks.view(32, -1, BLOCK_TYPES[kind].size)
        per_block[..., first.get(kind, 2) : end] = byte
        weight = StoredBlocks(kind, blocks)
        layer = GroupedLinear(kernels, packed(kernels, weight), None)
        for x in (torch.ones(5, 512), -torch.ones(5, 512)):
            assert torch.equal(layer(x.bfloat16()), grouped_linear(x.bfloat16(), weight.group_weight(), None))


@pytest.mark.parametrize("level", LIBRARY.levels())
@torch.inference_mode()
def test_parts_of_several_types_and_rows_in_another_order(level: Level) -> None:
    """q and k of a file are often of another type than v, and their rows are interleaved."""
    kernels = Kernels(LIBRARY, level, 2)
    order = torch.randperm(64, generator=torch.Generator().manual_seed(1)).int()
    kinds = ("Q4_K", "Q6_K", "Q8_0")
    weights = [StoredBlocks(kind, random_blocks(kind, 64, 512, seed=number)) for number, kind in enumerate(kinds)]
    weights[1] = StoredBlocks("Q6_K", weights[1].blocks, order)
    weights.append(StoredBlocks("Q5_0", random_blocks("Q5_0", 40, 512)))
    bias = normal(232, seed=3).bfloat16()
    layer = GroupedLinear(kernels, packed(kernels, *weights), bias)
    for rows in (1, 2, 9, 40):
        x = normal(rows, 512, seed=rows).bfloat16()
        parts = [
            grouped_linear(x, weight.group_weight(), own)
            for weight, own in zip(weights, bias.split([64, 64, 64, 40]), strict=True)
        ]
        assert torch.equal(layer(x), torch.cat(parts, 1)), f"{rows} rows"


@pytest.mark.parametrize("level", LIBRARY.levels())
@torch.inference_mode()
def test_gates_may_be_of_another_type(level: Level) -> None:
    """The gate is activated, and only it."""
    kernels = Kernels(LIBRARY, level, 2)
    gate, up = (StoredBlocks(kind, random_blocks(kind, 64, 256, tame=True)) for kind in ("Q4_K", "Q5_0"))
    layer = GroupedLinear(kernels, packed(kernels, gate, up), None, activation=1, is_gated=True)
    for rows in (1, 9, 40):
        x = normal(rows, 256, seed=rows).bfloat16()
        first, second = (grouped_linear(x.float(), each.group_weight(), None) for each in (gate, up))
        wanted = torch.nn.functional.silu(first) * second
        assert torch.allclose(layer(x).float(), wanted, rtol=2**-7, atol=1e-3), f"{rows} rows"


@pytest.mark.parametrize("level", LIBRARY.levels())
@torch.inference_mode()
def test_a_row_does_not_depend_on_other_rows(level: Level) -> None:
    """Otherwise a neighbour with large activations, or the number of threads, would change a request's tokens."""
    weight, x = StoredBlocks("Q4_1", random_blocks("Q4_1", 100, 64)), normal(300, 64, seed=3).bfloat16()
    x[100] *= 1000
    alone, *shared = (
        GroupedLinear(kernels, packed(kernels, weight), None)
        for kernels in (Kernels(LIBRARY, level, threads) for threads in (1, 1, 3))
    )
    wanted = torch.cat([alone(x[row : row + 1]) for row in range(300)])
    for each in shared:
        assert torch.equal(each(x), wanted)
        assert torch.equal(each(x[:7]), wanted[:7])


@pytest.mark.parametrize("level", LIBRARY.levels())
@torch.inference_mode()
def test_a_row_without_a_number_has_none(level: Level) -> None:
    """A broken row turned into plausible tokens."""
    kernels = Kernels(LIBRARY, level, 1)
    layer = GroupedLinear(kernels, packed(kernels, StoredBlocks("Q8_0", random_blocks("Q8_0", 32, 512))), None)
    x = normal(5, 512, seed=2).bfloat16()
    x[1, 19], x[2, 500], x[4] = float("nan"), float("-inf"), 0.0
    got = layer(x)
    assert got.isfinite().all(1).tolist() == [True, False, False, True, True]
    assert not got[1:3].isfinite().any()
    assert not got[4].any()


@pytest.mark.parametrize("kind", BLOCK_TYPES)
@torch.inference_mode()
def test_looked_up_rows_are_the_dequantised_ones(kind: str) -> None:
    """The embedding is not copied: it is read from the file, a row at a time."""
    kernels = Kernels(LIBRARY, LIBRARY.best(), 2)
    order = torch.randperm(50, generator=torch.Generator().manual_seed(1)).int()
    ids = torch.randint(0, 50, (70,), generator=torch.Generator().manual_seed(2))
    for each in (None, order):
        weight = StoredBlocks(kind, random_blocks(kind, 50, 512), each)
        assert torch.equal(StoredEmbedding(kernels, weight)(ids), weight.dense(torch.bfloat16)[ids])


@pytest.mark.parametrize("kind", BLOCK_TYPES)
def test_packed_weights_are_as_large_as_in_the_file(kind: str) -> None:
    """A decode takes as long as reading them."""
    kernels = Kernels(LIBRARY, LIBRARY.best(), 1)
    weight = StoredBlocks(kind, random_blocks(kind, 64, 512))
    most = {"Q2_K": 1.77, "Q3_K": 1.33}.get(kind, 1.02)  # of these, numbers take four bits
    assert pack_blocks(kernels, weight).values.nbytes <= most * weight.nbytes


def test_a_mapped_file_is_only_read(tmp_path: Path) -> None:
    """Its pages are dropped from the process, and come back from the file: beside them, nothing may be lost."""
    kernels = Kernels(LIBRARY, LIBRARY.best(), 1)
    blocks = random_blocks("Q4_0", 900, 512, seed=4)
    path = tmp_path / "blocks"
    path.write_bytes(bytes(100) + blocks.numpy().tobytes() + bytes(range(256)))
    mapped = torch.from_numpy(np.memmap(path, mode="c"))
    weight = StoredBlocks("Q4_0", mapped[100:-256].view(900, -1), is_mapped=True)
    first, second = (pack_blocks(kernels, each).values for each in (weight, weight))
    assert torch.equal(first, pack_blocks(kernels, StoredBlocks("Q4_0", blocks)).values)
    assert torch.equal(first, second)
    assert mapped[-256:].tolist() == list(range(256))

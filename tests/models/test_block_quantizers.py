"""Weights that become blocks of a GGUF type while they are loaded."""

from __future__ import annotations

import pytest
import torch

from compiled import library
from sluice.kernels.cpu.library import Kernels
from sluice.models.block_quantizers import EightBits, FourBits, q4_0_blocks
from sluice.models.grouped_layers import PackedRows, pack_blocks
from sluice.models.quantized import Int4Weight
from sluice.models.stored_blocks import StoredBlocks


def normal(*size: int, seed: int) -> torch.Tensor:
    return torch.randn(size, generator=torch.Generator().manual_seed(seed)) * 0.05


def test_eight_bits_are_off_by_half_a_step_of_their_own_group() -> None:
    """One scale for a whole row takes most bits from its smaller groups."""
    weight = normal(7, 96, seed=1)
    weight[:, :32] *= 100
    weight[3, 64:] = 0.0
    blocks = EightBits.quantize(weight.bfloat16())
    steps = weight.bfloat16().float().unflatten(1, (3, 32)).abs().amax(2) / 127
    error = (blocks.dense(torch.float32) - weight.bfloat16().float()).unflatten(1, (3, 32)).abs().amax(2)
    assert (error <= 0.5 * steps + 2**-11 * 127 * steps).all()
    assert not error[3, 2]


def test_four_bits_are_those_of_the_definition() -> None:
    """Nibbles in another order, or a scale that is rounded again."""
    weight = normal(40, 128, seed=2)
    blocks = FourBits.quantize(weight)
    assert isinstance(blocks, StoredBlocks)
    assert torch.equal(blocks.dense(torch.float32), Int4Weight.quantize(weight).dense(torch.float32))
    wide = q4_0_blocks(Int4Weight.quantize(weight, 64))
    assert wide is not None
    assert torch.equal(wide.dense(torch.float32), Int4Weight.quantize(weight, 64).dense(torch.float32))


def test_four_bits_that_blocks_cannot_hold_stay_as_they_are() -> None:
    """Numbers of a checkpoint that are rounded a second time."""
    weight = normal(8, 64, seed=3)
    made = Int4Weight.quantize(weight)
    assert q4_0_blocks(Int4Weight(made.values, made.scales, made.scales)) is None
    assert q4_0_blocks(Int4Weight.quantize(weight, 16)) is None
    assert q4_0_blocks(Int4Weight(made.values, made.scales * 1.0001)) is None
    assert isinstance(FourBits.quantize(weight * 1e-6), Int4Weight)


@pytest.mark.parametrize("kind", [EightBits, FourBits])
@pytest.mark.parametrize("value", [float("inf"), float("nan")])
def test_broken_values_are_refused(kind: type[EightBits] | type[FourBits], value: float) -> None:
    """Noise for every answer, and no word about it."""
    weight = normal(4, 64, seed=4)
    weight[2, 50] = value
    with pytest.raises(ValueError, match="infinite or no numbers"):
        kind.quantize(weight)


@torch.inference_mode()
def test_rows_are_looked_up_in_the_packed_weight() -> None:
    """A tied embedding that is there twice, or that returns the row of another token."""
    kernels = Kernels(library(), library().best(), 2)
    weight = EightBits.quantize(normal(71, 96, seed=5))
    ids = torch.tensor([0, 70, 31, 32, 16, 15, 47, 0])
    assert torch.equal(PackedRows(pack_blocks(kernels, weight))(ids), weight.dense(torch.bfloat16)[ids])

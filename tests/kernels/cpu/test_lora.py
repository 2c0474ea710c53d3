"""What adapters add to a layer, at every level, against the definition in torch."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from compiled import TILES, all_kernels, level_name
from lora_slots import drawn, drawn_slots
from sluice.kernels.cpu.library import Kernels
from sluice.models.blocks.lora import NO_ADAPTER, add_lora
from sluice.models.native_ops import NativeOps
from sluice.models.ops import Ops
from sluice.models.packers import NativePacker

ALL = all_kernels()
SIZES = [(64, (32, 16, 16)), (44, (33,)), (1030, (600, 40)), (33, (20, 12)), (96, (600, 600))]
"""Inputs, and outputs of the parts: whole vectors or not, several items or one."""
ROWS = 53


def tokens_of(rows: int) -> torch.Tensor:
    """Return adapters for rows in no order, some of which have several rows; every sixth has none."""
    return torch.tensor([row * 7 % 6 - 1 if row < 30 else 2 for row in range(rows)], dtype=torch.int32)


@pytest.mark.parametrize("kernels", ALL, ids=level_name)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize(("inputs", "outputs"), SIZES)
@torch.inference_mode()
def test_the_sums_are_those_of_the_definition(
    kernels: Kernels, dtype: torch.dtype, inputs: int, outputs: tuple[int, ...]
) -> None:
    """A rank, a part or an element too many or too few, and rows without an adapter that are changed."""
    slots, tokens = drawn_slots(inputs, outputs), tokens_of(ROWS)
    x = drawn(5, ROWS, inputs + 6)[:, 3 : inputs + 3]
    before = drawn(6, ROWS, sum(outputs)).to(dtype)
    found, wanted = before.clone(), before.clone()
    NativeOps(kernels).add_lora(found, x, tokens, slots)
    add_lora(wanted, x, tokens, slots)
    exact = 2**-7 if dtype == torch.bfloat16 else 1e-6 * inputs
    torch.testing.assert_close(found, wanted, rtol=exact, atol=1e-3 * inputs**0.5)
    assert torch.equal(found[tokens == NO_ADAPTER], before[tokens == NO_ADAPTER])
    assert not torch.equal(found, before)


@pytest.mark.parametrize("kernels", ALL, ids=level_name)
@pytest.mark.parametrize(("inputs", "outputs"), SIZES)
@torch.inference_mode()
def test_a_row_does_not_depend_on_other_rows(kernels: Kernels, inputs: int, outputs: tuple[int, ...]) -> None:
    """Otherwise the streams beside a request would change its tokens."""
    slots, tokens, ops = drawn_slots(inputs, outputs), tokens_of(ROWS), NativeOps(kernels)
    x, before = drawn(5, ROWS, inputs), drawn(6, ROWS, sum(outputs))
    together = before.clone()
    ops.add_lora(together, x, tokens, slots)
    for row in range(ROWS):
        alone = before[row : row + 1].clone()
        ops.add_lora(alone, x[row : row + 1], tokens[row : row + 1].clone(), slots)
        assert torch.equal(alone[0], together[row]), row


@pytest.mark.parametrize("kernels", [each for each in ALL if each.level not in TILES], ids=level_name)
@pytest.mark.parametrize("activation", ["silu", "gelu_pytorch_tanh"])
@torch.inference_mode()
def test_gated_rows_without_an_adapter_keep_their_bits(kernels: Kernels, activation: str) -> None:
    """A stream without an adapter whose tokens change when one with an adapter joins its step."""
    gate, up = (nn.Linear(44, 96, bias=False, dtype=torch.bfloat16).requires_grad_(False) for _ in range(2))
    layer = NativePacker(kernels).gated(gate, up, activation=activation)
    slots, tokens, ops = drawn_slots(44, (96, 96)), tokens_of(ROWS), NativeOps(kernels)
    x = drawn(5, ROWS, 44)
    plain, adapted = layer(x, ops), layer.adapted(x, ops, tokens, slots)
    has_none = tokens == NO_ADAPTER
    assert torch.equal(adapted[has_none], plain[has_none])
    both = torch.cat((x.float() @ gate.weight.t().float(), x.float() @ up.weight.t().float()), dim=1)
    wanted = Ops().add_lora_and_gate(both, x, tokens, slots, activation)
    torch.testing.assert_close(adapted, wanted, rtol=0.02, atol=0.02)

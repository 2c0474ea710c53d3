"""What adapters add to a layer, by Triton, against the definition in torch."""

from __future__ import annotations

import pytest
import torch

from lora_slots import drawn_slots
from sluice.models.blocks.lora import NO_ADAPTER, LoraSlots, add_lora
from sluice.models.fp8_rows import fp8_rows
from sluice.models.triton_ops import TritonOps
from triton_device import each_device, quiet

pytestmark = quiet
SIZES = [(64, (32, 16, 16)), (44, (33,)), (230, (70, 40))]
"""Inputs, and outputs of the parts: whole tiles or not, several or one."""
ROWS = 37


def normal(seed: int, *size: int) -> torch.Tensor:
    return torch.randn(size, generator=torch.Generator().manual_seed(seed))


def tokens_of(rows: int) -> torch.Tensor:
    """Return adapters for rows in no order, and then a tile of one adapter; every sixth of the first has none."""
    return torch.tensor([row * 7 % 6 - 1 if row < 20 else 2 for row in range(rows)], dtype=torch.int32)


def on(device: torch.device, inputs: int, outputs: tuple[int, ...], dtype: torch.dtype) -> LoraSlots:
    return drawn_slots(inputs, outputs, dtype=dtype, device=device)


@each_device
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32], ids=str)
@pytest.mark.parametrize(("inputs", "outputs"), SIZES)
@torch.inference_mode()
def test_the_sums_are_those_of_the_definition(
    dtype: torch.dtype, inputs: int, outputs: tuple[int, ...], device: torch.device
) -> None:
    """A rank, a part or an element too many or too few, and rows without an adapter that are changed."""
    slots, tokens = on(device, inputs, outputs, dtype), tokens_of(ROWS).to(device)
    x = normal(5, ROWS, inputs + 6).to(device, dtype)[:, 3 : inputs + 3]
    before = normal(6, ROWS, sum(outputs) + 2).to(device, dtype)[:, : sum(outputs)]
    found, wanted = before.clone(), before.clone()
    TritonOps().add_lora(found, x, tokens, slots)
    add_lora(wanted, x, tokens, slots)
    exact = 1e-5 if dtype == torch.float32 else 2**-7
    torch.testing.assert_close(found, wanted, rtol=exact, atol=exact * inputs**0.5)
    assert torch.equal(found[tokens == NO_ADAPTER], before[tokens == NO_ADAPTER])
    assert not torch.equal(found, before)


@each_device
@torch.inference_mode()
def test_a_row_does_not_depend_on_other_rows(device: torch.device) -> None:
    """Otherwise the streams beside a request would change its tokens."""
    inputs, outputs = SIZES[2]
    slots, tokens, ops = on(device, inputs, outputs, torch.bfloat16), tokens_of(ROWS).to(device), TritonOps()
    x = normal(5, ROWS, inputs).to(device, torch.bfloat16)
    before = normal(6, ROWS, sum(outputs)).to(device, torch.bfloat16)
    together = before.clone()
    ops.add_lora(together, x, tokens, slots)
    for row in range(ROWS):
        alone = before[row : row + 1].clone()
        ops.add_lora(alone, x[row : row + 1], tokens[row : row + 1].clone(), slots)
        assert torch.equal(alone[0], together[row]), row


@each_device
@torch.inference_mode()
def test_inputs_in_fp8_are_taken(device: torch.device) -> None:
    inputs, outputs = SIZES[0]
    slots, tokens = on(device, inputs, outputs, torch.bfloat16), tokens_of(ROWS).to(device)
    x = fp8_rows(normal(5, ROWS, inputs).to(device, torch.bfloat16))
    found = torch.zeros((ROWS, sum(outputs)), dtype=torch.bfloat16, device=device)
    wanted = found.clone()
    TritonOps().add_lora(found, x, tokens, slots)
    add_lora(wanted, x, tokens, slots)
    torch.testing.assert_close(found, wanted, rtol=2**-7, atol=2**-7 * inputs**0.5)

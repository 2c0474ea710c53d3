"""Slots of random adapters for one layer, for tests of what computes them."""

from __future__ import annotations

import torch

from sluice.models.blocks.lora import LoraPair, LoraSlots
from sluice.types.adapters import AdapterLimits

RANKS = (1, 3, 16, 8, 5)


def drawn(seed: int, *size: int, dtype: torch.dtype = torch.bfloat16) -> torch.Tensor:
    return torch.randn(size, generator=torch.Generator().manual_seed(seed)).to(dtype)


def drawn_slots(
    inputs: int,
    outputs: tuple[int, ...],
    *,
    dtype: torch.dtype = torch.bfloat16,
    device: torch.device = torch.device("cpu"),  # noqa: B008 - a constant
) -> LoraSlots:
    """Return adapters of which some leave a part as it is; what they do not fill is not a number."""
    slots = LoraSlots(AdapterLimits(len(RANKS), 16), inputs, outputs, dtype, device)
    slots.a.fill_(torch.nan)
    slots.b.fill_(torch.nan)
    for slot, rank in enumerate(RANKS):
        parts = [part for part in range(len(outputs)) if (slot + part) % 4 != 3]
        pairs = {
            part: LoraPair(drawn(slot, rank, inputs), drawn(9 + slot + part, outputs[part], rank), 0.3 + slot)
            for part in parts
        }
        slots.load(slot, pairs)
    return slots

"""What adapters add to a linear layer: `y += scale * (x A^T) B^T` for the rows of each (Hu et al., "LoRA", 2021).

A layer that was joined of several (q, k and v; gate and up) has an A and a B for each of them. The matrices of all
adapters lie side by side in slots, so that one step computes rows of many adapters. An adapter of a smaller rank uses
the first rows of its slot.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch

from sluice.models.fp8_rows import Fp8Rows, Rows
from sluice.types.adapters import AdapterLimits

PADDING = 32
"""Numbers behind each row of B, so that the beginnings of rows do not all lie in one set of the processor's cache."""
NO_ADAPTER = -1
"""The slot of a token without an adapter."""


@dataclass(frozen=True, slots=True)
class LoraPart:
    """A layer that an adapter may name, whole, as it is in a checkpoint."""

    name: str
    in_features: int
    out_features: int


class LoraPair(NamedTuple):
    """The matrices that an adapter has for a layer."""

    a: torch.Tensor
    """[rank, in_features]"""
    b: torch.Tensor
    """[out_features, rank]"""
    scale: float


class LoraSlots:
    """The matrices of all loaded adapters for one layer, or for a shard's part of it.

    Args:
        in_features: of the layer.
        outputs: of each part, in order.
        dtype: of the matrices, the model's.
    """

    def __init__(
        self,
        limits: AdapterLimits,
        in_features: int,
        outputs: Sequence[int],
        dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        slots, rank, parts = limits.max_loras, limits.max_lora_rank, len(outputs)
        self.in_features = in_features
        self.outputs = tuple(outputs)
        self.widths = torch.tensor(outputs, dtype=torch.int32, device=device)
        """[parts], the same for kernels."""
        self.a = torch.empty((slots, parts, rank, in_features), dtype=dtype, device=device)
        width = sum(outputs)
        self.b = torch.empty((slots, rank, width + PADDING), dtype=dtype, device=device)[..., :width]
        """The transposed B of each part, [rank, outputs], one beside the other."""
        self.ranks = torch.zeros((slots, parts), dtype=torch.int32, device=device)
        """0: the adapter leaves the part as it is."""
        self.scales = torch.zeros((slots, parts), dtype=torch.float32, device=device)
        self.of_slots: list[tuple[tuple[int, float], ...]] = [((0, 0.0),) * parts for _ in range(slots)]
        """Rank and scale of each part of each slot, on the host."""

    @property
    def num_bytes(self) -> int:
        return sum(each.untyped_storage().nbytes() for each in (self.a, self.b, self.ranks, self.scales))

    def columns(self, part: int) -> slice:
        """Return the outputs of a part."""
        first = sum(self.outputs[:part])
        return slice(first, first + self.outputs[part])

    def load(self, slot: int, pairs: Mapping[int, LoraPair]) -> None:
        """Fill a slot that no running step reads.

        Args:
            pairs: matrices by part, cut as the layer is; parts without some are left as they are.
        """
        for part, (a, b, _) in pairs.items():
            rank = len(a)
            self.a[slot, part, :rank].copy_(a)
            self.b[slot, :rank, self.columns(part)].copy_(b.t())
        found = [pairs.get(part) for part in range(len(self.outputs))]
        own = tuple((0, 0.0) if pair is None else (len(pair.a), pair.scale) for pair in found)
        self.ranks[slot] = torch.tensor([rank for rank, _ in own], dtype=torch.int32)
        self.scales[slot] = torch.tensor([scale for _, scale in own], dtype=torch.float32)
        self.of_slots[slot] = own

    def clear(self, slot: int) -> None:
        """Empty a slot that no running step reads: it adds nothing."""
        self.load(slot, {})


def wide_rows(x: Rows) -> torch.Tensor:
    """Return the inputs of a layer in the dtype of the model."""
    return (x.values.float() * x.scales[:, None]).to(x.dtype) if isinstance(x, Fp8Rows) else x


def add_lora(y: torch.Tensor, x: Rows, tokens: torch.Tensor, slots: LoraSlots) -> None:
    """Add to a layer's outputs what the adapters of their rows give: the definition that kernels follow.

    The products are summed in float32, or in float64 of a float64 model, and rounded once, when they are added.

    Args:
        y: [N, outputs of all parts], of any float dtype. Rows without an adapter are not touched.
        x: [N, in_features], the layer's inputs.
        tokens: [N] int32, the slot of each row's adapter, or `NO_ADAPTER`.
    """
    rows = wide_rows(x)
    wide = torch.float64 if rows.dtype == torch.float64 else torch.float32
    for slot in tokens.unique().tolist():
        if slot == NO_ADAPTER:
            continue
        own = (tokens == slot).nonzero().flatten()
        of_adapter = rows[own].to(wide)
        for part, (rank, scale) in enumerate(slots.of_slots[slot]):
            if not rank:
                continue
            columns = slots.columns(part)
            shrunk = of_adapter @ slots.a[slot, part, :rank].to(wide).t()
            added = (shrunk * scale) @ slots.b[slot, :rank, columns].to(wide)
            y[own, columns] = (y[own, columns].to(wide) + added).to(y.dtype)

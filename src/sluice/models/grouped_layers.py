"""Layers over the blocks of a GGUF file: products by the compiled kernels, or by torch, and embeddings."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import nn

from sluice.kernels.cpu.abi import EmbedRowsCall, GroupedLinearCall, GroupedPart, PackBlocksCall
from sluice.kernels.cpu.library import Kernels
from sluice.models.block_types import BLOCK_TYPES
from sluice.models.experts import ClampedSwiGLU
from sluice.models.iq_grids import USERS, kernel_grids
from sluice.models.native_rows import run_rows
from sluice.models.stored_blocks import StoredBlocks

BLOCK = 32
"""Outputs in a block of the packed weight (`kernels/cpu/packed_groups.h`)."""
GROUP = 32
"""Inputs of a block of type Q8_0."""


class PackedBlocks(NamedTuple):
    """A weight in the layout of `kernels/cpu/packed_groups.h`. The last block may hold more outputs than the layer."""

    values: torch.Tensor
    """[blocks, bytes] uint8"""
    kind: str
    in_features: int
    out_features: int

    def rows(self, rows: range) -> PackedBlocks:
        """Return a view of some outputs, which begin with a block."""
        first, end = rows.start // BLOCK, -(-rows.stop // BLOCK)
        return self._replace(values=self.values[first:end], out_features=len(rows))


def pack_blocks(kernels: Kernels, weight: StoredBlocks) -> PackedBlocks:
    """Pack a weight, on all threads, and drop the pages of a mapped file that held it."""
    kind, inputs, outputs = _type_of(weight, kernels), weight.in_features, weight.out_features
    packed = torch.empty((-(-outputs // BLOCK), kernels.packed_bytes(kind, inputs)), dtype=torch.uint8)
    call = PackBlocksCall(
        blocks=weight.blocks.data_ptr(),
        order=None if weight.order is None else weight.order.data_ptr(),
        packed=packed.data_ptr(),
        rows=len(weight.blocks),
        stride=weight.blocks.stride(0),
        type=kind,
        out_features=outputs,
        in_features=inputs,
        is_mapped=weight.is_mapped,
    )
    kernels.pack_blocks(call)
    return PackedBlocks(packed, weight.kind, inputs, outputs)


def _type_of(weight: StoredBlocks, kernels: Kernels) -> int:
    """Return the number of a weight's type for the kernels, which get the grids first if the type needs one."""
    if weight.kind in USERS:
        kernels.take_grids(kernel_grids().data_ptr())
    return BLOCK_TYPES[weight.kind].id


class GroupedLinear(nn.Module):
    """A product with packed blocks, followed by an activation.

    Args:
        parts: weights with the same input; their outputs come one behind the other.
        bias: [outputs of all parts] bfloat16.
        activation: a number of `abi.h`.
        is_gated: there are two parts of equal size; the first is activated and multiplied with the second.
        dtype: of the outputs, bfloat16 or float32.
        clamped: the activation, if it is this one.
    """

    def __init__(
        self,
        kernels: Kernels,
        parts: Sequence[PackedBlocks],
        bias: torch.Tensor | None,
        activation: int = 0,
        *,
        is_gated: bool = False,
        dtype: torch.dtype = torch.bfloat16,
        clamped: ClampedSwiGLU | None = None,
    ) -> None:
        super().__init__()
        self._kernels = kernels
        # Kept alive: the kernel has their addresses. As buffers they count in the memory of the weights.
        for number, part in enumerate(parts):
            self.register_buffer(f"packed_{number}", part.values, persistent=False)
        self._bias, self._dtype = bias, dtype
        self._listed = (GroupedPart * len(parts))(
            *(GroupedPart(part.values.data_ptr(), BLOCK_TYPES[part.kind].id, part.out_features) for part in parts)
        )
        outputs = sum(part.out_features for part in parts)
        self.out_features = outputs // 2 if is_gated else outputs
        self.call = GroupedLinearCall(
            parts=ctypes.addressof(self._listed),
            bias=None if bias is None else bias.data_ptr(),
            y_stride=self.out_features,
            in_features=parts[0].in_features,
            count=len(parts),
            activation=activation,
            is_gated=is_gated,
            is_float_y=dtype == torch.float32,
            alpha=0.0 if clamped is None else clamped.alpha,
            limit=0.0 if clamped is None else clamped.limit,
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """[N, in_features] to [N, out_features]; the rows of x may be strided."""
        return run_rows(
            self._kernels.grouped_linear, self.call, x, torch.empty((x.shape[0], self.out_features), dtype=self._dtype)
        )

    def ungated(self, x: torch.Tensor) -> torch.Tensor:
        """Return the outputs of a gated layer before the gate, [N, 2 * out_features] in float32: gate and up."""
        y = torch.empty((x.shape[0], 2 * self.out_features), dtype=torch.float32)
        call = GroupedLinearCall.from_buffer_copy(self.call)
        call.y_stride, call.activation, call.is_gated, call.is_float_y = y.shape[1], 0, False, True
        return run_rows(self._kernels.grouped_linear, call, x, y)


class StoredEmbedding(nn.Module):
    """Looks up tokens in the blocks of a file, which stay there."""

    def __init__(self, kernels: Kernels, weight: StoredBlocks) -> None:
        super().__init__()
        self._kernels = kernels
        self.weight = weight
        if not weight.is_mapped:  # then it counts in the memory of the weights
            self.register_buffer("blocks", weight.blocks, persistent=False)
        self._call = EmbedRowsCall(
            blocks=weight.blocks.data_ptr(),
            order=None if weight.order is None else weight.order.data_ptr(),
            stride=weight.blocks.stride(0),
            type=_type_of(weight, kernels),
            in_features=weight.in_features,
        )

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        """[N] int64 to [N, in_features] bfloat16."""
        ids = ids.contiguous()
        rows = torch.empty((len(ids), self.weight.in_features), dtype=torch.bfloat16)
        call = self._call
        call.ids, call.count, call.out = ids.data_ptr(), len(ids), rows.data_ptr()
        self._kernels.embed_rows(call)
        return rows


class PackedRows(nn.Module):
    """Looks up tokens in a packed weight of type Q8_0, which the head shares."""

    def __init__(self, weight: PackedBlocks) -> None:
        super().__init__()
        parts = weight.values.unflatten(1, (weight.in_features // GROUP, -1))
        self.numbers = parts[..., : GROUP * BLOCK].view(torch.int8).unflatten(2, (GROUP // 4, 2, BLOCK // 2, 4))
        self.scales = parts[..., GROUP * BLOCK :].view(torch.float16)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        """[N] int64 to [N, in_features] bfloat16."""
        block, output = ids // BLOCK, ids % BLOCK
        numbers = self.numbers[block, :, :, output // (BLOCK // 2), output % (BLOCK // 2)].flatten(2)
        return (numbers * self.scales[block, :, output].float()[..., None]).flatten(1).bfloat16()

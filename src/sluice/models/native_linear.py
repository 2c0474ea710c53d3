"""Layers with packed weights whose products the compiled kernels compute."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import nn

from sluice.kernels.cpu.abi import CODES, PackedLinearCall
from sluice.kernels.cpu.library import Kernels
from sluice.models.blocks.lora import LoraSlots
from sluice.models.experts import ClampedSwiGLU, ExpertActivation
from sluice.models.grouped_layers import BLOCK, GroupedLinear
from sluice.models.native_rows import run_rows
from sluice.models.ops import Ops

CLAMPED = 4
"""The number of `ClampedSwiGLU` in `kernels/cpu/abi.h`."""
SCALE_TYPES = (torch.float32, torch.bfloat16, torch.float16)
"""Dtypes of scales, in the order of `kernels/cpu/abi.h`."""


def code_of(activation: str | ClampedSwiGLU | None) -> int:
    """Return the number of an activation that the kernel applies."""
    return CLAMPED if isinstance(activation, ClampedSwiGLU) else CODES[activation]


class PackedWeight(NamedTuple):
    """A weight in the layout of `kernels/cpu/packing.h`. The last block may hold more outputs than the layer."""

    values: torch.Tensor
    """[blocks, in_features / 2, 32, 2] bfloat16, output `32 * block + n` at [block, :, n, :]; or
    [blocks, in_features / 4, 32, 4] int8; or [blocks, in_features / 4, 16, 4] uint8, two outputs in a byte."""
    in_features: int
    scales: torch.Tensor | None = None
    """Scales of int8: [32 * blocks] float32; of four bits: [blocks, groups, 32] bfloat16 or float16 if one of them is
    exact, else float32."""
    sums: torch.Tensor | None = None
    """[32 * blocks] int32, the sums of each output's int8 values."""
    minimums: torch.Tensor | None = None
    """Minimums of four bits, unless they are symmetric, in the shape and dtype of the scales."""
    group: int = 0
    """Inputs with one scale, for four bits."""

    def rows(self, rows: range) -> PackedWeight:
        """Return a view of some outputs, in bfloat16 or int8, that begin with a block."""
        first, end = rows.start // BLOCK, -(-rows.stop // BLOCK)
        outputs = slice(first * BLOCK, end * BLOCK)
        scales, sums = (None if each is None else each[outputs] for each in (self.scales, self.sums))
        return self._replace(values=self.values[first:end], scales=scales, sums=sums)


class NativeLinear(nn.Module):
    """A product with a packed weight, followed by an activation.

    Args:
        bias: [outputs] bfloat16.
        out_features: outputs of the layer, half of the packed ones if gated.
        activation: a key of `CODES`, or `ClampedSwiGLU` if gated.
        is_gated: the first half of the outputs is activated and multiplied with the second.
        dtype: of the outputs, bfloat16 or float32.
    """

    def __init__(
        self,
        kernels: Kernels,
        weight: PackedWeight,
        bias: torch.Tensor | None,
        out_features: int,
        activation: str | ClampedSwiGLU | None = None,
        *,
        is_gated: bool = False,
        dtype: torch.dtype = torch.bfloat16,
    ) -> None:
        super().__init__()
        self._kernels = kernels
        self._dtype = dtype
        # Kept alive: the kernel has their addresses.
        self.packed, self.scales, self.sums, self.minimums = weight.values, weight.scales, weight.sums, weight.minimums
        self._bias = bias
        self.out_features = out_features
        clamped = activation if isinstance(activation, ClampedSwiGLU) else None
        self.call = PackedLinearCall(
            weight=weight.values.data_ptr(),
            scales=_address(weight.scales),
            sums=_address(weight.sums),
            minimums=_address(weight.minimums),
            bias=_address(bias),
            y_stride=out_features,
            in_features=weight.in_features,
            out_features=out_features,
            activation=code_of(activation),
            is_gated=is_gated,
            group=weight.group,
            scale_type=0 if weight.scales is None else SCALE_TYPES.index(weight.scales.dtype),
            is_float_y=dtype == torch.float32,
            alpha=0.0 if clamped is None else clamped.alpha,
            limit=0.0 if clamped is None else clamped.limit,
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """[N, in_features] to [N, out_features]; the rows of x may be strided."""
        return run_rows(
            self._kernels.packed_linear, self.call, x, torch.empty((x.shape[0], self.out_features), dtype=self._dtype)
        )

    def ungated(self, x: torch.Tensor) -> torch.Tensor:
        """Return the outputs of a gated layer before the gate, [N, 2 * out_features] in float32: gate and up."""
        y = torch.empty((x.shape[0], 2 * self.out_features), dtype=torch.float32)
        call = PackedLinearCall.from_buffer_copy(self.call)
        call.out_features = call.y_stride = y.shape[1]
        call.activation, call.is_gated, call.is_float_y = CODES[None], False, True
        return run_rows(self._kernels.packed_linear, call, x, y)


class NativeGated(nn.Module):
    """A gated product in one kernel. It does not need the model's `Ops`.

    Args:
        activation: of the gate.
    """

    def __init__(self, layer: NativeLinear | GroupedLinear, activation: ExpertActivation) -> None:
        super().__init__()
        self.layer = layer
        self._activation = activation

    def forward(self, x: torch.Tensor, ops: Ops) -> torch.Tensor:
        """[N, in_features] to [N, out_features]."""
        return self.layer(x)

    def adapted(self, x: torch.Tensor, ops: Ops, adapters: torch.Tensor, slots: LoraSlots) -> torch.Tensor:
        """As of `Gated`. Rows without an adapter get the bits that `forward` gives."""
        assert isinstance(self._activation, str), "experts have no adapters"
        return ops.add_lora_and_gate(self.layer.ungated(x), x, adapters, slots, self._activation)


class PackedEmbedding(nn.Module):
    """Looks up tokens in the packed weight of the head."""

    def __init__(self, weight: PackedWeight) -> None:
        super().__init__()
        self.packed, self.scales = weight.values, weight.scales

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        """[N] int64 to [N, in_features] bfloat16."""
        rows = self.packed[ids // BLOCK, :, ids % BLOCK].flatten(1)
        return rows if self.scales is None else (rows * self.scales[ids][:, None]).bfloat16()


def _address(tensor: torch.Tensor | None) -> int | None:
    return None if tensor is None else tensor.data_ptr()

"""Packers of linear layers for CPUs, over the compiled kernels and over oneDNN, and the choice of one for a device."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import nn
from torch.nn import functional

from sluice.kernels.cpu.abi import CODES, PackedLinearCall
from sluice.kernels.cpu.library import Kernels
from sluice.models.blocks.lora import LoraSlots
from sluice.models.cuda_packer import CudaPacker
from sluice.models.grouped_layers import BLOCK, GroupedLinear, PackedRows, StoredEmbedding, pack_blocks
from sluice.models.linear import Packer, PlainLinear, Source, Tied, activated, int8_of, joined_bias
from sluice.models.ops import Ops
from sluice.models.quantized import Int4Weight, Int8Weight, QuantizedLinear, QuantizedWeight, narrowest
from sluice.models.spec import BLOCKS
from sluice.models.stored_blocks import StoredBlocks

SCALE_TYPES = (torch.float32, torch.bfloat16, torch.float16)
"""Dtypes of scales, in the order of `kernels/cpu/abi.h`."""


def packer_for(device: torch.device, kernels: Kernels | None) -> Packer:
    """Return the fastest packer for a device. Our kernels beat oneDNN for every number of rows (docs/cpu.md).

    Args:
        kernels: the compiled kernels; None leaves a CPU to torch.
    """
    if kernels is not None:
        return NativePacker(kernels)
    if device.type == "cuda":
        return CudaPacker(device)
    return OneDNNPacker() if device.type == "cpu" and has_onednn_bfloat16() else Packer()


def has_onednn_bfloat16() -> bool:
    """Return whether oneDNN multiplies bfloat16 here, which takes AVX-512. Without it torch's own code is as fast."""
    return torch.backends.mkldnn.is_available() and torch.ops.mkldnn._is_mkldnn_bf16_supported()


class OneDNNLinear(nn.Module):
    """A product with a weight in oneDNN's own layout, which only oneDNN can read."""

    def __init__(self, weight: torch.Tensor, bias: torch.Tensor | None) -> None:
        super().__init__()
        self._packed = torch.ops.mkldnn._reorder_linear_weight(weight)
        self._bias = bias

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """[N, in_features] to [N, out_features]."""
        return torch.ops.mkldnn._linear_pointwise(x, self._packed, self._bias, "none", [], "")


class OneDNNPacker(Packer):
    """Packs bfloat16 weights. Unpacked, small batches run at a third of the speed. Other dtypes stay plain.

    A tied embedding is stored twice: as rows for lookups, and packed.
    """

    def _product(
        self, weight: torch.Tensor | QuantizedWeight, bias: torch.Tensor | None, dtype: torch.dtype
    ) -> nn.Module:
        if isinstance(weight, torch.Tensor) and weight.dtype == torch.bfloat16:
            return OneDNNLinear(weight, bias)
        return super()._product(weight, bias, dtype)

    def tied(self, embedding: nn.Embedding | QuantizedLinear, rows: range) -> Tied:
        if isinstance(embedding, QuantizedLinear) or embedding.weight.dtype != torch.bfloat16 or not rows:
            return super().tied(embedding, rows)
        return Tied(embedding, OneDNNLinear(embedding.weight.data[rows.start : rows.stop], None))


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
        activation: a key of `CODES`.
        is_gated: the first half of the outputs is activated and multiplied with the second.
        dtype: of the outputs, bfloat16 or float32.
    """

    def __init__(
        self,
        kernels: Kernels,
        weight: PackedWeight,
        bias: torch.Tensor | None,
        out_features: int,
        activation: str | None = None,
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
        self._call = PackedLinearCall(
            weight=weight.values.data_ptr(),
            scales=_address(weight.scales),
            sums=_address(weight.sums),
            minimums=_address(weight.minimums),
            bias=_address(bias),
            y_stride=out_features,
            in_features=weight.in_features,
            out_features=out_features,
            activation=CODES[activation],
            is_gated=is_gated,
            group=weight.group,
            scale_type=0 if weight.scales is None else SCALE_TYPES.index(weight.scales.dtype),
            is_float_y=dtype == torch.float32,
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """[N, in_features] to [N, out_features]; the rows of x may be strided."""
        return self._run(self._call, x, torch.empty((x.shape[0], self.out_features), dtype=self._dtype))

    def ungated(self, x: torch.Tensor) -> torch.Tensor:
        """Return the outputs of a gated layer before the gate, [N, 2 * out_features] in float32: gate and up."""
        y = torch.empty((x.shape[0], 2 * self.out_features), dtype=torch.float32)
        call = PackedLinearCall.from_buffer_copy(self._call)
        call.out_features = call.y_stride = y.shape[1]
        call.activation, call.is_gated, call.is_float_y = CODES[None], False, True
        return self._run(call, x, y)

    def _run(self, call: PackedLinearCall, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        if x.stride(1) != 1:
            x = x.contiguous()
        call.x, call.x_stride, call.rows, call.y = x.data_ptr(), x.stride(0), x.shape[0], y.data_ptr()
        self._kernels.packed_linear(call)
        return y


class NativeGated(nn.Module):
    """A gated product in one kernel. It does not need the model's `Ops`.

    Args:
        activation: of the gate.
    """

    def __init__(self, layer: NativeLinear | GroupedLinear, activation: str) -> None:
        super().__init__()
        self.layer = layer
        self._activation = activation

    def forward(self, x: torch.Tensor, ops: Ops) -> torch.Tensor:
        """[N, in_features] to [N, out_features]."""
        return self.layer(x)

    def adapted(self, x: torch.Tensor, ops: Ops, adapters: torch.Tensor, slots: LoraSlots) -> torch.Tensor:
        """As of `Gated`. Rows without an adapter get the bits that `forward` gives."""
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


class NativePacker(Packer):
    """Packs bfloat16 weights, and quantised ones in a bfloat16 model. A tied embedding is stored once.

    Other dtypes stay plain, and sizes of inputs or groups that are no multiple of what the kernel multiplies at once:
    two of bfloat16, four of quantised ones.
    """

    def __init__(self, kernels: Kernels) -> None:
        self._kernels = kernels

    def why_not(self, kind: str, dtype: torch.dtype) -> str | None:
        # Four bits are made for activations that are not quantised, which only `--quantization int4` asks to quantise.
        return None if kind in ("int8", BLOCKS) and dtype == torch.bfloat16 else super().why_not(kind, dtype)

    def linear(self, *parts: Source, activation: str | None = None) -> nn.Module:
        if not all(map(_can_be_packed, parts)):
            return super().linear(*parts, activation=activation)
        fused = activation if activation in CODES else None
        layer = self._layer(*parts, activation=fused)
        return layer if fused == activation else activated(layer, activation)

    def head(self, layer: Source) -> nn.Module:
        return self._layer(layer, dtype=torch.float32) if _can_be_packed(layer) else super().head(layer)

    def gated(self, *parts: Source, activation: str) -> nn.Module:
        outputs = sum(part.out_features for part in parts) // 2
        if not all(map(_can_be_packed, parts)) or activation not in CODES or outputs % BLOCK:
            return super().gated(*parts, activation=activation)
        blocks = _blocks_of(parts)
        if blocks is not None:
            blocks = blocks[0].halves() if len(blocks) == 1 else blocks  # a matrix for both
            return NativeGated(self._grouped(blocks, joined_bias(parts), activation, is_gated=True), activation)
        weight, bias = self._joined(*parts)
        layer = NativeLinear(self._kernels, self._packed(weight), bias, outputs, activation, is_gated=True)
        return NativeGated(layer, activation)

    def tied(self, embedding: nn.Embedding | QuantizedLinear, rows: range) -> Tied:
        if isinstance(embedding, QuantizedLinear) and isinstance(embedding.weight, StoredBlocks):
            if rows and embedding.weight.kind == "Q8_0" and not embedding.weight.is_mapped:
                return self._tied_rows(embedding.weight, rows)
            own = embedding.weight.outputs(rows)
            head = (
                self._grouped([own], None, dtype=torch.float32)
                if rows
                else PlainLinear(own.dense(embedding.dtype), None)
            )
            return Tied(StoredEmbedding(self._kernels, embedding.weight), head)
        if not _can_be_packed(embedding) or not rows:
            return super().tied(embedding, rows)
        weight = int8_of(embedding) if isinstance(embedding, QuantizedLinear) else embedding.weight.data
        packed = self._packed(weight)
        own_rows = NativeLinear(self._kernels, packed.rows(rows), None, len(rows), dtype=torch.float32)
        return Tied(PackedEmbedding(packed), own_rows)

    def _tied_rows(self, weight: StoredBlocks, rows: range) -> Tied:
        """Create an embedding and a head from one packed weight: no file holds another."""
        packed = pack_blocks(self._kernels, weight)
        return Tied(PackedRows(packed), GroupedLinear(self._kernels, [packed.rows(rows)], None, dtype=torch.float32))

    def embedding(self, embedding: nn.Embedding | QuantizedLinear) -> nn.Module:
        if isinstance(embedding, QuantizedLinear) and isinstance(embedding.weight, StoredBlocks):
            return StoredEmbedding(self._kernels, embedding.weight)
        return super().embedding(embedding)

    def _layer(
        self, *parts: Source, activation: str | None = None, dtype: torch.dtype = torch.bfloat16
    ) -> NativeLinear | GroupedLinear:
        """Return the joined layer of parts that can be packed.

        Args:
            activation: a key of `CODES`.
            dtype: of the outputs.
        """
        blocks = _blocks_of(parts)
        if blocks is not None:
            return self._grouped(blocks, joined_bias(parts), activation, dtype=dtype)
        weight, bias = self._joined(*parts)
        outputs = sum(part.out_features for part in parts)
        return NativeLinear(self._kernels, self._packed(weight), bias, outputs, activation, dtype=dtype)

    def _grouped(
        self,
        weights: Sequence[StoredBlocks],
        bias: torch.Tensor | None,
        activation: str | None = None,
        *,
        is_gated: bool = False,
        dtype: torch.dtype = torch.bfloat16,
    ) -> GroupedLinear:
        """Return the layer of blocks as they are stored, packed one after the other."""
        parts = [pack_blocks(self._kernels, weight) for weight in weights]
        return GroupedLinear(self._kernels, parts, bias, CODES[activation], is_gated=is_gated, dtype=dtype)

    def _packed(self, weight: torch.Tensor | QuantizedWeight) -> PackedWeight:
        """Return the weight [out, in] in blocks, packed in place if it fills whole blocks."""
        if isinstance(weight, Int8Weight):
            return self._packed_int8(weight)
        if isinstance(weight, Int4Weight):
            return self._packed_int4(weight)
        assert isinstance(weight, torch.Tensor), f"a weight of {type(weight).__name__} on a CPU"
        outputs, inputs = weight.shape
        packed = _whole_blocks(weight)
        self._kernels.pack_linear(weight.data_ptr(), outputs, inputs, packed.data_ptr())
        return PackedWeight(packed.view(-1, inputs // 2, BLOCK, 2), inputs)

    def _packed_int8(self, weight: Int8Weight) -> PackedWeight:
        values, (outputs, inputs) = weight.values, weight.values.shape
        packed = _whole_blocks(values)
        scales, sums = (torch.zeros(len(packed), dtype=dtype) for dtype in (torch.float32, torch.int32))
        scales[:outputs] = weight.scales
        self._kernels.pack_int8(values.data_ptr(), outputs, inputs, packed.data_ptr(), sums.data_ptr())
        return PackedWeight(packed.view(-1, inputs // 4, BLOCK, 4), inputs, scales, sums)

    def _packed_int4(self, weight: Int4Weight) -> PackedWeight:
        inputs, packed = weight.in_features, _whole_blocks(weight.values)
        self._kernels.pack_int4(weight.values.data_ptr(), weight.out_features, inputs, packed.data_ptr())
        groups = narrowest([_by_block(each) for each in (weight.scales, weight.minimums) if each is not None])
        return PackedWeight(
            packed.view(-1, inputs // 4, BLOCK // 2, 4),
            inputs,
            groups[0],
            minimums=groups[1] if len(groups) > 1 else None,
            group=weight.group,
        )


def _whole_blocks(weight: torch.Tensor) -> torch.Tensor:
    """Return memory for a weight [out, in] with whole blocks of outputs: the weight itself if that has whole ones."""
    outputs, inputs = weight.shape
    return weight if outputs % BLOCK == 0 else weight.new_empty((-(-outputs // BLOCK) * BLOCK, inputs))


def _by_block(scales: torch.Tensor) -> torch.Tensor:
    """Return what groups have [out, groups] as [blocks, groups, 32], with zeros for outputs that are missing."""
    whole = functional.pad(scales, (0, 0, 0, -len(scales) % BLOCK))
    return whole.view(-1, BLOCK, scales.shape[1]).transpose(1, 2).contiguous()


def _blocks_of(parts: Sequence[Source]) -> list[StoredBlocks] | None:
    """Return the weights of layers that are all blocks of a file, of one type or of several; None if one is not."""
    weights = [part.weight for part in parts if isinstance(part, QuantizedLinear)]
    blocks = [weight for weight in weights if isinstance(weight, StoredBlocks)]
    return blocks if len(blocks) == len(parts) else None


def _can_be_packed(layer: nn.Linear | nn.Embedding | QuantizedLinear) -> bool:
    if isinstance(layer, QuantizedLinear):
        together = layer.weight.group if isinstance(layer.weight, Int4Weight) else layer.in_features
        return layer.dtype == torch.bfloat16 and together % 4 == 0
    weight = layer.weight
    return weight.dtype == torch.bfloat16 and weight.is_contiguous() and weight.shape[1] % 2 == 0


def _address(tensor: torch.Tensor | None) -> int | None:
    return None if tensor is None else tensor.data_ptr()

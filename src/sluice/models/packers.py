"""Packers of linear layers for CPUs, over the compiled kernels and over oneDNN, and the choice of one for a device."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch
from torch import nn
from torch.nn import functional

from sluice.kernels.cpu.abi import CODES
from sluice.kernels.cpu.library import Kernels
from sluice.models.cuda_packer import CudaPacker
from sluice.models.experts import ClampedSwiGLU, ExpertActivation, ExpertLayers, PackedExpert
from sluice.models.grouped_layers import BLOCK, GroupedLinear, PackedRows, StoredEmbedding, pack_blocks
from sluice.models.linear import Packer, PlainLinear, Source, Tied, activated, int8_of, joined_bias
from sluice.models.native_experts import native_experts
from sluice.models.native_linear import NativeGated, NativeLinear, PackedEmbedding, PackedWeight, code_of
from sluice.models.native_router import native_router
from sluice.models.quantized import Int4Weight, Int8Weight, QuantizedLinear, QuantizedWeight, narrowest
from sluice.models.router import Chooser, Router
from sluice.models.spec import BLOCKS
from sluice.models.stored_blocks import StoredBlocks


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
        return self._gated(parts, activation) or super().gated(*parts, activation=activation)

    def router(self, router: Router) -> Chooser:
        return native_router(self._kernels, router)

    def experts(self, experts: Iterable[ExpertLayers], activation: ExpertActivation) -> nn.Module:
        return native_experts(self._kernels, [self._expert(layers, activation) for layers in experts])

    def _expert(self, layers: ExpertLayers, activation: ExpertActivation) -> PackedExpert:
        gated = None if layers.gate is None else self._gated((layers.gate, layers.up), activation)
        return PackedExpert(gated, self.linear(layers.down)) if gated else super()._expert(layers, activation)

    def _gated(self, parts: Sequence[Source], activation: ExpertActivation) -> NativeGated | None:
        """Return the layer of two parts, or of one that is both; None if the kernels do not compute it."""
        outputs = sum(part.out_features for part in parts) // 2
        is_known = isinstance(activation, ClampedSwiGLU) or activation in CODES
        if not is_known or outputs % BLOCK or not all(map(_can_be_packed, parts)):
            return None
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
        activation: ExpertActivation | None = None,
        *,
        is_gated: bool = False,
        dtype: torch.dtype = torch.bfloat16,
    ) -> GroupedLinear:
        """Return the layer of blocks as they are stored, packed one after the other."""
        parts = [pack_blocks(self._kernels, weight) for weight in weights]
        clamped = activation if isinstance(activation, ClampedSwiGLU) else None
        code = code_of(activation)
        return GroupedLinear(self._kernels, parts, bias, code, is_gated=is_gated, dtype=dtype, clamped=clamped)

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

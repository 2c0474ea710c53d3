"""Packers of linear layers for CPUs, over the compiled kernels and over oneDNN, and the choice of one for a device."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import nn

from sluice.models.linear import Packer, Tied, activated, joined
from sluice.models.ops import Ops
from sluice.native.abi import PackedLinearCall
from sluice.native.library import Kernels

BLOCK = 32
"""Outputs in a block of the packed weight (`native/packing.h`)."""
CODES: Mapping[str | None, int] = {None: 0, "silu": 1, "swish": 1, "gelu_new": 2, "gelu_pytorch_tanh": 2, "relu": 3}
"""Numbers in `native/abi.h` of the activations that the kernel applies."""


def packer_for(device: torch.device, kernels: Kernels | None) -> Packer:
    """Return the fastest packer for a device. Our kernels beat oneDNN for every number of rows (docs/cpu.md).

    Args:
        kernels: the compiled kernels; None leaves a CPU to torch.
    """
    if kernels is not None:
        return NativePacker(kernels)
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

    def linear(self, *parts: nn.Linear, activation: str | None = None) -> nn.Module:
        if parts[0].weight.dtype != torch.bfloat16:
            return super().linear(*parts, activation=activation)
        return activated(OneDNNLinear(*joined(*parts)), activation)

    def tied(self, embedding: nn.Embedding) -> Tied:
        if embedding.weight.dtype != torch.bfloat16:
            return super().tied(embedding)
        return Tied(embedding, OneDNNLinear(embedding.weight.data, None))


class NativeLinear(nn.Module):
    """A product with a packed weight, followed by an activation.

    Args:
        packed: [blocks, in_features / 2, 32, 2] bfloat16, output `32 * block + n` at [block, :, n, :].
        bias: [outputs] bfloat16.
        out_features: outputs of the layer, half of the packed ones if gated. The last block may hold more.
        activation: a key of `CODES`.
        is_gated: the first half of the outputs is activated and multiplied with the second.
    """

    def __init__(
        self,
        kernels: Kernels,
        packed: torch.Tensor,
        bias: torch.Tensor | None,
        out_features: int,
        activation: str | None = None,
        *,
        is_gated: bool = False,
    ) -> None:
        super().__init__()
        self._kernels = kernels
        self._bias = bias  # keep it alive: the kernel has its address
        self.packed = packed
        self.out_features = out_features
        self._call = PackedLinearCall(
            weight=packed.data_ptr(),
            bias=None if bias is None else bias.data_ptr(),
            y_stride=out_features,
            in_features=2 * packed.shape[1],
            out_features=out_features,
            activation=CODES[activation],
            is_gated=is_gated,
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """[N, in_features] to [N, out_features]; the rows of x may be strided."""
        if x.stride(1) != 1:
            x = x.contiguous()
        y = torch.empty((x.shape[0], self.out_features), dtype=x.dtype)
        call = self._call
        call.x, call.x_stride, call.rows, call.y = x.data_ptr(), x.stride(0), x.shape[0], y.data_ptr()
        self._kernels.packed_linear(call)
        return y


class NativeGated(nn.Module):
    """A gated product in one kernel. It does not need the model's `Ops`."""

    def __init__(self, layer: NativeLinear) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, x: torch.Tensor, ops: Ops) -> torch.Tensor:
        """[N, in_features] to [N, out_features]."""
        return self.layer(x)


class PackedEmbedding(nn.Module):
    """Looks up tokens in the packed weight of the head."""

    def __init__(self, packed: torch.Tensor) -> None:
        super().__init__()
        self.packed = packed

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        """[N] int64 to [N, in_features]."""
        return self.packed[ids // BLOCK, :, ids % BLOCK].flatten(1)


class NativePacker(Packer):
    """Packs bfloat16 weights. A tied embedding is stored once.

    Other dtypes stay plain, and odd input sizes, since the kernel multiplies pairs.
    """

    def __init__(self, kernels: Kernels) -> None:
        self._kernels = kernels

    def linear(self, *parts: nn.Linear, activation: str | None = None) -> nn.Module:
        if not _can_be_packed(parts[0].weight):
            return super().linear(*parts, activation=activation)
        weight, bias = joined(*parts)
        fused = activation if activation in CODES else None
        layer = NativeLinear(self._kernels, self._packed(weight), bias, weight.shape[0], fused)
        return layer if fused == activation else activated(layer, activation)

    def gated(self, gate: nn.Linear, up: nn.Linear, activation: str) -> nn.Module:
        outputs = gate.out_features
        if not _can_be_packed(gate.weight) or activation not in CODES or outputs % BLOCK:
            return super().gated(gate, up, activation)
        weight, bias = joined(gate, up)
        return NativeGated(NativeLinear(self._kernels, self._packed(weight), bias, outputs, activation, is_gated=True))

    def tied(self, embedding: nn.Embedding) -> Tied:
        if not _can_be_packed(embedding.weight):
            return super().tied(embedding)
        packed = self._packed(embedding.weight.data)
        return Tied(PackedEmbedding(packed), NativeLinear(self._kernels, packed, None, embedding.num_embeddings))

    def _packed(self, weight: torch.Tensor) -> torch.Tensor:
        """Return the weight [out, in] in blocks, packed in place if it fills whole blocks."""
        outputs, inputs = weight.shape
        blocks = -(-outputs // BLOCK)
        packed = weight if outputs % BLOCK == 0 else weight.new_empty((blocks * BLOCK, inputs))
        self._kernels.pack_linear(weight.data_ptr(), outputs, inputs, packed.data_ptr())
        return packed.view(blocks, inputs // 2, BLOCK, 2)


def _can_be_packed(weight: torch.Tensor) -> bool:
    return weight.dtype == torch.bfloat16 and weight.is_contiguous() and weight.shape[1] % 2 == 0

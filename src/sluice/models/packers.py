"""Chooses the packer that lays out the weights of linear layers, and implements the one for oneDNN."""

from __future__ import annotations

import torch
from torch import nn

from sluice.models.linear import Packer, PlainPacker, Tied, activated, joined
from sluice.models.native_linear import NativePacker
from sluice.native.library import Kernels


def packer_for(device: torch.device, kernels: Kernels | None) -> Packer:
    """Return the fastest packer for a device. Our kernels beat oneDNN for every number of rows (docs/cpu.md).

    Args:
        kernels: the compiled kernels; None leaves a CPU to torch.
    """
    if kernels is not None:
        return NativePacker(kernels)
    return OneDNNPacker() if device.type == "cpu" and has_onednn_bfloat16() else PlainPacker()


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


class OneDNNPacker(PlainPacker):
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

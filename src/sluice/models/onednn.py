"""Linear layers whose weights are laid out once by oneDNN, torch's library for the CPU."""

from __future__ import annotations

import torch
from torch import nn

from sluice.models.linear import Gated, Packer, Tied, activated, joined


def has_onednn_bfloat16() -> bool:
    """Whether oneDNN multiplies bfloat16 on this machine: it takes AVX-512. Without, torch's own code is no slower."""
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


class OneDNNPacker:
    """Packs bfloat16, whose products with a weight as stored run at a third of the speed for small batches.

    An embedding that is the head is held twice: as rows to look up, and packed.

    Args:
        otherwise: takes what is not bfloat16.
    """

    def __init__(self, otherwise: Packer) -> None:
        self._otherwise = otherwise

    def linear(self, *parts: nn.Linear, activation: str | None = None) -> nn.Module:
        """See `Packer.linear`."""
        if parts[0].weight.dtype != torch.bfloat16:
            return self._otherwise.linear(*parts, activation=activation)
        return activated(OneDNNLinear(*joined(*parts)), activation)

    def gated(self, gate: nn.Linear, up: nn.Linear, activation: str) -> nn.Module:
        """See `Packer.gated`."""
        return Gated(self.linear(gate, up), activation)

    def tied(self, embedding: nn.Embedding) -> Tied:
        """See `Packer.tied`."""
        if embedding.weight.dtype != torch.bfloat16:
            return self._otherwise.tied(embedding)
        return Tied(embedding, OneDNNLinear(embedding.weight.data, None))

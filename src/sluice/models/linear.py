"""Linear layers in the form in which they are computed.

A checkpoint stores q, k and v, or gate and up, as matrices of their own, and `nn.Linear` holds them while they are
read. A packer then makes one layer of those that read the same input, lays its weight out for the machine, and the
originals are let go: a step makes fewer and larger products, and no weight is there twice.
"""

from __future__ import annotations

from typing import NamedTuple, Protocol

import torch
from torch import nn
from torch.nn import functional

from sluice.models.activations import ACTIVATIONS
from sluice.models.ops import Ops


class Tied(NamedTuple):
    """An embedding and the head that shares its weight."""

    embedding: nn.Module
    """[N] int64 token ids to [N, hidden_size]."""
    head: nn.Module
    """[R, hidden_size] to [R, vocab_size]."""


class Packer(Protocol):
    """Lays weights out. What it takes is the packer's from then on."""

    def linear(self, *parts: nn.Linear, activation: str | None = None) -> nn.Module:
        """One layer for several with the same input.

        Args:
            parts: of one dtype, with or without biases all of them.
            activation: applied to the outputs; a key of `ACTIVATIONS`.

        Returns:
            A module from [N, in_features] to [N, sum of the parts' out_features], the parts' outputs in their order.
        """
        ...

    def gated(self, gate: nn.Linear, up: nn.Linear, activation: str) -> nn.Module:
        """Two layers with the same input and equal outputs, the first activated and multiplied with the second.

        Returns:
            A module from (x [N, in_features], the model's `Ops`) to [N, out_features].
        """
        ...

    def tied(self, embedding: nn.Embedding) -> Tied:
        """An embedding that is the head, too."""
        ...


class PlainLinear(nn.Module):
    """Torch's own product."""

    def __init__(self, weight: torch.Tensor, bias: torch.Tensor | None) -> None:
        super().__init__()
        self.weight = nn.Parameter(weight, requires_grad=False)
        self.bias = None if bias is None else nn.Parameter(bias, requires_grad=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """[N, in_features] to [N, out_features]."""
        return functional.linear(x, self.weight, self.bias)


class Activated(nn.Module):
    """An activation after a layer."""

    def __init__(self, layer: nn.Module, activation: str) -> None:
        super().__init__()
        self.layer = layer
        self.activation = ACTIVATIONS[activation]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """[N, in_features] to [N, out_features]."""
        return self.activation(self.layer(x))


class Gated(nn.Module):
    """The gate after a layer that gives gate and up side by side."""

    def __init__(self, layer: nn.Module, activation: str) -> None:
        super().__init__()
        self.layer = layer
        self.activation = activation

    def forward(self, x: torch.Tensor, ops: Ops) -> torch.Tensor:
        """[N, in_features] to half of what the layer gives."""
        gate, up = self.layer(x).chunk(2, dim=-1)
        return ops.gate_and_mul(gate, up, self.activation)


class PlainPacker:
    """Puts weights side by side and leaves the rest to torch: right on any device and in any dtype."""

    def linear(self, *parts: nn.Linear, activation: str | None = None) -> nn.Module:
        """See `Packer.linear`."""
        return activated(PlainLinear(*joined(*parts)), activation)

    def gated(self, gate: nn.Linear, up: nn.Linear, activation: str) -> nn.Module:
        """See `Packer.gated`."""
        return Gated(self.linear(gate, up), activation)

    def tied(self, embedding: nn.Embedding) -> Tied:
        """See `Packer.tied`."""
        return Tied(embedding, PlainLinear(embedding.weight, None))


def activated(layer: nn.Module, activation: str | None) -> nn.Module:
    """The layer with an activation after it, or alone."""
    return layer if activation is None else Activated(layer, activation)


def joined(*parts: nn.Linear) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Weight [sum of out_features, in_features] and bias of layers side by side; a single one's own, not copies."""
    weights = [part.weight.data for part in parts]
    biases = [part.bias.data for part in parts if part.bias is not None]
    assert len(biases) in (0, len(parts)), f"{len(biases)} of {len(parts)} layers have a bias"
    if len(parts) == 1:
        return weights[0], biases[0] if biases else None
    return torch.cat(weights), torch.cat(biases) if biases else None

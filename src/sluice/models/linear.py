"""Linear layers as they are computed, and the packer that creates them.

A checkpoint stores q, k and v, or gate and up, as separate matrices, and `nn.Linear` holds them while they are read. A
packer then joins layers with the same input into one, lays out its weight for the machine and drops the originals. So a
step computes fewer and larger products, and no weight is stored twice.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import nn
from torch.nn import functional

from sluice.models.ops import ACTIVATIONS, Ops


class Tied(NamedTuple):
    """An embedding and the head that shares its weight."""

    embedding: nn.Module
    """[N] int64 token ids to [N, hidden_size]."""
    head: nn.Module
    """[R, hidden_size] to [R, vocab_size]."""


class PlainLinear(nn.Module):
    """A product by torch."""

    def __init__(self, weight: torch.Tensor, bias: torch.Tensor | None) -> None:
        super().__init__()
        self.weight = nn.Parameter(weight, requires_grad=False)
        self.bias = None if bias is None else nn.Parameter(bias, requires_grad=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """[N, in_features] to [N, out_features]."""
        return functional.linear(x, self.weight, self.bias)


class Activated(nn.Module):
    """A layer followed by an activation."""

    def __init__(self, layer: nn.Module, activation: str) -> None:
        super().__init__()
        self.layer = layer
        self.activation = ACTIVATIONS[activation]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """[N, in_features] to [N, out_features]."""
        return self.activation(self.layer(x))


class Gated(nn.Module):
    """A layer that computes gate and up side by side, followed by `activation(gate) * up`."""

    def __init__(self, layer: nn.Module, activation: str) -> None:
        super().__init__()
        self.layer = layer
        self.activation = activation

    def forward(self, x: torch.Tensor, ops: Ops) -> torch.Tensor:
        """[N, in_features] to [N, half of the layer's outputs]."""
        gate, up = self.layer(x).chunk(2, dim=-1)
        return ops.gate_and_mul(gate, up, self.activation)


class Packer:
    """Creates layers with packed weights, and owns the layers that are passed to it.

    This packer only joins weights and leaves the products to torch, on any device and in any dtype.
    """

    def linear(self, *parts: nn.Linear, activation: str | None = None) -> nn.Module:
        """Join layers with the same input into one.

        Args:
            parts: layers of one dtype, all with or all without a bias.
            activation: applied to the outputs; a key of `ACTIVATIONS`.

        Returns:
            A module from [N, in_features] to [N, sum of the parts' out_features], the parts' outputs in their order.
        """
        return activated(PlainLinear(*joined(*parts)), activation)

    def gated(self, gate: nn.Linear, up: nn.Linear, activation: str) -> nn.Module:
        """Join two layers with the same input: the activation of the first, times the second.

        Returns:
            A module from (x [N, in_features], the model's `Ops`) to [N, out_features].
        """
        return Gated(self.linear(gate, up), activation)

    def tied(self, embedding: nn.Embedding) -> Tied:
        """Create embedding and head from one weight."""
        return Tied(embedding, PlainLinear(embedding.weight, None))


def activated(layer: nn.Module, activation: str | None) -> nn.Module:
    """Return the layer, followed by an activation if one is given."""
    return layer if activation is None else Activated(layer, activation)


def joined(*parts: nn.Linear) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Return the joined weight [sum of out_features, in_features] and bias; of a single layer its own, no copy."""
    weights = [part.weight.data for part in parts]
    biases = [part.bias.data for part in parts if part.bias is not None]
    assert len(biases) in (0, len(parts)), f"{len(biases)} of {len(parts)} layers have a bias"
    if len(parts) == 1:
        return weights[0], biases[0] if biases else None
    return torch.cat(weights), torch.cat(biases) if biases else None

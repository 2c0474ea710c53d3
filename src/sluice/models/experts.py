"""The definition of a mixture of experts, which the compiled and the Triton kernels follow.

Each token is computed by a few of many MLPs, the experts, and the results are summed with weights (Shazeer et al.,
"Outrageously Large Neural Networks", 2017).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import nn

from sluice.models.ops import Ops, compute_dtype


class ClampedSwiGLU(NamedTuple):
    """The activation of gpt-oss: `(up + 1) * gate * sigmoid(alpha * gate)`.

    Before, gate is at most `limit`, and up is from `-limit` to `limit`.
    """

    limit: float = 7.0
    alpha: float = 1.702

    def apply(self, gate: torch.Tensor, up: torch.Tensor) -> torch.Tensor:
        """Return the activation of gate and up, which have one shape, in their dtype; it is computed in float32."""
        wide = compute_dtype(gate.dtype)
        bounded = gate.to(wide).clamp(max=self.limit)
        linear = up.to(wide).clamp(-self.limit, self.limit)
        return ((linear + 1) * (bounded * torch.sigmoid(bounded * self.alpha))).to(gate.dtype)


ExpertActivation = str | ClampedSwiGLU
"""A key of `ops.ACTIVATIONS`, for `activation(gate) * up`; or how gpt-oss does it."""


class ExpertLayers(NamedTuple):
    """The layers of an expert, as they were read (`linear.Source`). All experts have the same sizes."""

    gate: Any
    """[inner, hidden_size]; None: there is no gate."""
    up: Any
    """[inner, hidden_size]"""
    down: Any
    """[hidden_size, inner]"""


class Ungated(nn.Module):
    """A layer with its activation, in the place of one with a gate."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, x: torch.Tensor, ops: Ops) -> torch.Tensor:
        """[N, in_features] to [N, out_features]."""
        out: torch.Tensor = self.layer(x)
        return out


class PackedExpert(nn.Module):
    """An expert whose layers are packed.

    Args:
        gated: from x [N, hidden_size] and `Ops` to [N, inner].
        down: from [N, inner] to [N, hidden_size].
    """

    def __init__(self, gated: nn.Module, down: nn.Module) -> None:
        super().__init__()
        self.gated, self.down = gated, down

    def forward(self, x: torch.Tensor, ops: Ops) -> torch.Tensor:
        """[N, hidden_size] to the same."""
        out: torch.Tensor = self.down(self.gated(x, ops))
        return out


class ClampedGate(nn.Module):
    """A layer that computes gate and up side by side, followed by `ClampedSwiGLU`."""

    def __init__(self, layer: nn.Module, activation: ClampedSwiGLU) -> None:
        super().__init__()
        self.layer, self.activation = layer, activation

    def forward(self, x: torch.Tensor, ops: Ops) -> torch.Tensor:
        """[N, in_features] to [N, half of the layer's outputs]."""
        gate, up = self.layer(x).chunk(2, dim=-1)
        return self.activation.apply(gate, up)


class PlainExperts(nn.Module):
    """The experts of a layer in plain torch: the definition.

    Pairs of a token and an expert are sorted by expert, so that each expert computes contiguous rows. The order of a
    token's sum is that of its choices, so its result depends on no other token.
    """

    def __init__(self, experts: Sequence[PackedExpert]) -> None:
        super().__init__()
        self.experts = nn.ModuleList(experts)

    def forward(self, x: torch.Tensor, ids: torch.Tensor, weights: torch.Tensor, ops: Ops) -> torch.Tensor:
        """Return the weighted sums of the chosen experts' outputs.

        Args:
            x: [T, hidden_size], in the model's dtype.
            ids: [T, k] int64, the experts of each token, all different.
            weights: [T, k] float32; float64 in a model of float64.

        Returns:
            [T, hidden_size] in x's dtype. Each expert's output is rounded to that dtype, and multiplied and added in
            the dtype of the weights, from the first choice to the last.
        """
        chosen = ids.flatten()
        pairs = chosen.argsort(stable=True)
        rows = x[pairs // ids.shape[1]]
        counts = torch.bincount(chosen, minlength=len(self.experts)).tolist()
        outputs = x.new_empty((len(pairs), x.shape[1]))
        for expert, own, part in zip(self.experts, rows.split(counts), pairs.split(counts), strict=True):
            if len(own):
                outputs[part] = expert(own, ops)
        return weighted_sum(outputs.view(*ids.shape, x.shape[1]), weights)


def weighted_sum(outputs: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
    """Return the sums [T, size] of outputs [T, k, size] by weights [T, k], in the outputs' dtype.

    Products and sums are each rounded to the dtype of the weights, in ascending order of the choices.
    """
    total = outputs[:, 0] * weights[:, :1]
    for choice in range(1, outputs.shape[1]):
        total = total + outputs[:, choice] * weights[:, choice, None]
    return total.to(outputs.dtype)

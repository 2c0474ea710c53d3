"""The convolution over the last few tokens that layers with a state begin with."""

from __future__ import annotations

import torch
from torch import nn

from sluice.models.blocks.attention import LayerContext
from sluice.models.ops import compute_dtype
from sluice.models.plan import StatePlan
from sluice.models.recurrence import ConvWeights
from sluice.models.spec import ModelSpec


class Convolution(nn.Module):
    """A causal convolution of each channel by itself, whose weights are in `compute_dtype` of the model."""

    bias: torch.Tensor | None

    def __init__(self, spec: ModelSpec, plan: StatePlan) -> None:
        super().__init__()
        assert spec.state is not None, "a model without states"
        channels, wide = spec.state.channels, compute_dtype(spec.dtype)
        self.weight = nn.Parameter(torch.empty(channels, spec.state.taps, dtype=wide))
        bias = nn.Parameter(torch.empty(channels, dtype=wide)) if plan.conv_bias else None
        self.register_parameter("bias", bias)

    def pack(self) -> None:
        """Lay out the weight as kernels read it: tap by tap."""
        self.weight = nn.Parameter(self.weight.data.t().contiguous().t(), requires_grad=False)

    def forward(self, x: torch.Tensor, context: LayerContext, activation: str | None) -> torch.Tensor:
        """[N, channels] to the same.

        Args:
            activation: "silu", or None.
        """
        step = context.own_state()
        ops = context.ops.of_states(step.state.spec)
        return ops.causal_conv(x, ConvWeights(self.weight, self.bias, activation), step)

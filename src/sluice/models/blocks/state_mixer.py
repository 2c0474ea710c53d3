"""What layers with a recurrent state in the place of attention have in common."""

from __future__ import annotations

from abc import abstractmethod

import torch
from torch import nn

from sluice.models.blocks.attention import LayerContext
from sluice.models.fp8_rows import Rows
from sluice.models.linear import EmptyLinear, Layer, Packer
from sluice.models.ops import compute_dtype
from sluice.models.plan import DecoderConfig, StatePlan
from sluice.models.recurrence import ConvWeights
from sluice.models.shards import Block
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


class StateMixer(Block):
    """A convolution between two matrices. What is between it and the second differs."""

    in_proj: Layer
    """The first matrix."""

    def __init__(self, config: DecoderConfig, plan: StatePlan) -> None:
        super().__init__()
        spec = config.spec
        self.conv = Convolution(spec, plan)
        self.out_proj: Layer = EmptyLinear(plan.inner_size, spec.hidden_size, bias=plan.proj_bias, dtype=spec.dtype)

    @property
    def first(self) -> nn.Module:
        """The largest layer that takes the inputs, once it is packed."""
        found: nn.Module = self.in_proj
        return found

    def pack(self, packer: Packer) -> None:
        """Pack the convolution and the matrices."""
        self.conv.pack()
        self.pack_inputs(packer)
        self.out_proj = packer.linear(self.out_proj)

    def pack_inputs(self, packer: Packer) -> None:
        """Pack what takes the inputs."""
        self.in_proj = packer.linear(self.in_proj)

    @abstractmethod
    def forward(self, x: Rows, context: LayerContext, rows: torch.Tensor | None) -> torch.Tensor:
        """[N, hidden_size] to the same, or to those of `rows`."""

"""A gated short convolution in the place of attention (LFM2): `out(c * conv(b * x))`, over a few tokens."""

from __future__ import annotations

from types import MappingProxyType

import torch
from torch import nn

from sluice.models.blocks.attention import LayerContext
from sluice.models.blocks.convolution import Convolution
from sluice.models.fp8_rows import Rows
from sluice.models.linear import EmptyLinear, Layer, Packer
from sluice.models.plan import DecoderConfig, StatePlan
from sluice.models.shards import Block
from sluice.parallel.member import Member


class ShortConv(Block):
    """A convolution over the tokens of each channel by itself, between two gates."""

    cuts = MappingProxyType(dict.fromkeys(("in_proj", "conv", "out_proj")))

    def __init__(self, config: DecoderConfig, plan: StatePlan, member: Member) -> None:
        super().__init__()
        hidden, dtype, inner = config.spec.hidden_size, config.spec.dtype, plan.inner_size
        self.in_proj: Layer = EmptyLinear(hidden, 3 * inner, bias=plan.proj_bias, dtype=dtype)
        self.conv = Convolution(config.spec, plan)
        self.out_proj: Layer = EmptyLinear(inner, hidden, bias=plan.proj_bias, dtype=dtype)

    @property
    def first(self) -> nn.Module:
        """The layer that takes the inputs, once it is packed."""
        found: nn.Module = self.in_proj
        return found

    def pack(self, packer: Packer) -> None:
        """Pack both matrices."""
        self.conv.pack()
        self.in_proj, self.out_proj = packer.linear(self.in_proj), packer.linear(self.out_proj)

    def forward(self, x: Rows, context: LayerContext, rows: torch.Tensor | None) -> torch.Tensor:
        """[N, hidden_size] to the same, or to those of `rows`."""
        before, behind, values = self.in_proj(x).chunk(3, dim=-1)
        mixed = behind * self.conv(before * values, context, None)
        out: torch.Tensor = self.out_proj(mixed if rows is None else mixed[rows])
        return out

"""A gated short convolution in the place of attention (LFM2): `out(c * conv(b * x))`, over a few tokens."""

from __future__ import annotations

from types import MappingProxyType

import torch

from sluice.models.blocks.attention import LayerContext
from sluice.models.blocks.state_mixer import StateMixer
from sluice.models.fp8_rows import Rows
from sluice.models.linear import EmptyLinear, Layer
from sluice.models.plan import DecoderConfig, StatePlan


class ShortConv(StateMixer):
    """A convolution over the tokens of each channel by itself, between two gates."""

    cuts = MappingProxyType(dict.fromkeys(("in_proj", "conv", "out_proj")))

    def __init__(self, config: DecoderConfig, plan: StatePlan) -> None:
        super().__init__(config, plan)
        hidden, dtype, inner = config.spec.hidden_size, config.spec.dtype, plan.inner_size
        self.in_proj: Layer = EmptyLinear(hidden, 3 * inner, bias=plan.proj_bias, dtype=dtype)

    def forward(self, x: Rows, context: LayerContext, rows: torch.Tensor | None) -> torch.Tensor:
        before, behind, values = self.in_proj(x).chunk(3, dim=-1)
        mixed = behind * self.conv(before * values, context, None)
        out: torch.Tensor = self.out_proj(mixed if rows is None else mixed[rows])
        return out

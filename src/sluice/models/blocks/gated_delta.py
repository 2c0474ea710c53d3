"""A gated delta net in the place of attention (Yang, Kautz and Hatamizadeh, "Gated Delta Networks", 2024)."""

from __future__ import annotations

from types import MappingProxyType

import torch
from torch import nn
from torch.nn import functional

from sluice.models.blocks.attention import LayerContext
from sluice.models.blocks.convolution import Convolution
from sluice.models.fp8_rows import Rows, plain
from sluice.models.layers import RMSNorm
from sluice.models.linear import EmptyLinear, Layer, Packer, WideLinear
from sluice.models.ops import compute_dtype
from sluice.models.plan import DecoderConfig, StatePlan
from sluice.models.shards import Block
from sluice.parallel.member import Member

LENGTH_EPS = 1e-6
"""Added to the square of the length by which q and k are divided."""


class GatedDelta(Block):
    """A convolution, and a recurrence that replaces what a key stands for."""

    decay_rate: torch.Tensor
    """[value_heads], below 0"""
    dt_bias: torch.Tensor
    names = (
        "in_proj_qkv",
        "in_proj_z",
        "in_proj_b",
        "in_proj_a",
        "conv",
        "decay_rate",
        "dt_bias",
        "output_norm",
        "out_proj",
    )
    cuts = MappingProxyType(dict.fromkeys(names))

    def __init__(self, config: DecoderConfig, plan: StatePlan, member: Member) -> None:
        super().__init__()
        spec, state = config.spec, config.spec.state
        assert state is not None, "a model without states"
        hidden, dtype, wide = spec.hidden_size, spec.dtype, compute_dtype(spec.dtype)
        heads, keys = state.value_heads, state.key_heads * state.key_dim
        self._mixed = (keys, keys, plan.inner_size)
        self._key_dim, self._value_dim = state.key_dim, state.value_dim
        self._scale = state.key_dim**-0.5
        self.in_proj_qkv: Layer = EmptyLinear(hidden, state.channels, bias=plan.proj_bias, dtype=dtype)
        self.in_proj_z: Layer = EmptyLinear(hidden, plan.inner_size, bias=plan.proj_bias, dtype=dtype)
        # Few rows, whose errors would grow from token to token.
        self.in_proj_b: Layer = WideLinear(hidden, heads, bias=plan.proj_bias, dtype=dtype)
        self.in_proj_a: Layer = WideLinear(hidden, heads, bias=plan.proj_bias, dtype=dtype)
        self.conv = Convolution(spec, plan)
        for name in ("decay_rate", "dt_bias"):
            self.register_parameter(name, nn.Parameter(torch.empty(heads, dtype=wide)))
        self.output_norm = RMSNorm(state.value_dim, plan.norm_eps, dtype)
        self.out_proj: Layer = EmptyLinear(plan.inner_size, hidden, bias=plan.proj_bias, dtype=dtype)

    @property
    def first(self) -> nn.Module:
        """The largest layer that takes the inputs, once it is packed."""
        found: nn.Module = self.in_proj
        return found

    def pack(self, packer: Packer) -> None:
        """Join q, k, v and the gate into one layer, and the numbers of each head into another."""
        self.in_proj: Layer = packer.linear(self.in_proj_qkv, self.in_proj_z)
        self.in_proj_ba: Layer = packer.linear(self.in_proj_b, self.in_proj_a)
        del self.in_proj_qkv, self.in_proj_z, self.in_proj_b, self.in_proj_a
        self.out_proj = packer.linear(self.out_proj)

    def forward(self, x: Rows, context: LayerContext, rows: torch.Tensor | None) -> torch.Tensor:
        """[N, hidden_size] to the same, or to those of `rows`."""
        wide = self.output_norm.weight.dtype
        columns, gate = self.in_proj(x).split((sum(self._mixed), self._mixed[-1]), dim=-1)
        rates, steps = self.in_proj_ba(plain(x)).chunk(2, dim=-1)
        q, k, v = self.conv(columns, context, "silu").split(self._mixed, dim=-1)
        q, k = (self._unit(each) for each in (q, k))
        v = v.unflatten(-1, (-1, self._value_dim))
        beta = torch.sigmoid(rates).to(wide)
        decay = self.decay_rate * functional.softplus(steps.to(wide) + self.dt_bias)
        state, places = context.own_state()
        y = context.ops.recurrence(q * self._scale, k, v, decay, beta, state, places, context.batch.q_lens)
        y = y.to(gate.dtype)
        if rows is not None:
            y, gate = y[rows], gate[rows]
        out: torch.Tensor = self.out_proj(self._normed(y, gate.unflatten(-1, (-1, self._value_dim))).flatten(1))
        return out

    def _unit(self, x: torch.Tensor) -> torch.Tensor:
        """Return heads [N, heads, key_dim] of length 1, in the wide dtype."""
        heads = x.unflatten(-1, (-1, self._key_dim)).to(self.output_norm.weight.dtype)
        return heads * torch.rsqrt(heads.pow(2).sum(-1, keepdim=True) + LENGTH_EPS)

    def _normed(self, y: torch.Tensor, gate: torch.Tensor) -> torch.Tensor:
        """Return the norm of each head, times the gate's activation, both [N, value_heads, value_dim]."""
        wide = self.output_norm.weight.dtype
        heads = y.to(wide)
        normed = self.output_norm.weight * (
            heads * torch.rsqrt(heads.pow(2).mean(-1, keepdim=True) + self.output_norm.eps)
        )
        return (normed * functional.silu(gate.to(wide))).to(y.dtype)

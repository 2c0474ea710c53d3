"""Mamba-2 in the place of attention (Dao and Gu, "Transformers are SSMs", 2024)."""

from __future__ import annotations

from types import MappingProxyType

import torch
from torch import nn
from torch.nn import functional

from sluice.models.blocks.attention import LayerContext
from sluice.models.blocks.convolution import Convolution
from sluice.models.fp8_rows import Rows
from sluice.models.layers import RMSNorm
from sluice.models.linear import EmptyLinear, Layer, Packer
from sluice.models.ops import compute_dtype
from sluice.models.plan import DecoderConfig, StatePlan
from sluice.models.shards import Block
from sluice.parallel.member import Member


class Mamba2(Block):
    """A convolution, and a recurrence whose decay depends on the token. The state-space model's names are other ones:
    its C is q here, its B is k, and its x is v."""

    decay_rate: torch.Tensor
    """[value_heads], below 0"""
    skip: torch.Tensor
    """[value_heads], factor of v that is added to the output"""
    dt_bias: torch.Tensor
    cuts = MappingProxyType(
        dict.fromkeys(("in_proj", "conv", "decay_rate", "skip", "dt_bias", "output_norm", "out_proj"))
    )

    def __init__(self, config: DecoderConfig, plan: StatePlan, member: Member) -> None:
        super().__init__()
        spec, state = config.spec, config.spec.state
        assert state is not None, "a model without states"
        hidden, dtype, wide = spec.hidden_size, spec.dtype, compute_dtype(spec.dtype)
        self._parts = (plan.inner_size, state.channels, state.value_heads)
        keys = state.key_heads * state.key_dim
        self._mixed = (plan.inner_size, keys, keys)
        self._key_dim, self._value_dim = state.key_dim, state.value_dim
        self.in_proj: Layer = EmptyLinear(hidden, sum(self._parts), bias=plan.proj_bias, dtype=dtype)
        self.conv = Convolution(spec, plan)
        for name in ("decay_rate", "skip", "dt_bias"):
            self.register_parameter(name, nn.Parameter(torch.empty(state.value_heads, dtype=wide)))
        self.output_norm = RMSNorm(plan.inner_size, plan.norm_eps, dtype)
        self.out_proj: Layer = EmptyLinear(plan.inner_size, hidden, bias=plan.proj_bias, dtype=dtype)
        self._groups, self._limit = plan.groups, plan.time_step_limit

    @property
    def first(self) -> nn.Module:
        """The layer that takes the inputs, once it is packed."""
        found: nn.Module = self.in_proj
        return found

    def pack(self, packer: Packer) -> None:
        """Pack both matrices."""
        self.in_proj, self.out_proj = packer.linear(self.in_proj), packer.linear(self.out_proj)

    def forward(self, x: Rows, context: LayerContext, rows: torch.Tensor | None) -> torch.Tensor:
        """[N, hidden_size] to the same, or to those of `rows`."""
        gate, columns, steps = self.in_proj(x).split(self._parts, dim=-1)
        wide = self.output_norm.weight.dtype
        v, k, q = self.conv(columns, context, "silu").split(self._mixed, dim=-1)
        v = v.unflatten(-1, (-1, self._value_dim)).to(wide)
        q, k = (each.unflatten(-1, (-1, self._key_dim)).to(wide) for each in (q, k))
        steps = functional.softplus(steps.to(wide) + self.dt_bias).clamp(*self._limit)
        decay = steps * self.decay_rate
        state, places = context.own_state()
        scaled = v * steps[..., None]
        y = context.ops.recurrence(q, k, scaled, decay, None, state, places, context.batch.q_lens)
        y = (y + v * self.skip[:, None]).flatten(1)
        if rows is not None:
            y, gate = y[rows], gate[rows]
        out: torch.Tensor = self.out_proj(self._normed(y, gate))
        return out

    def _normed(self, y: torch.Tensor, gate: torch.Tensor) -> torch.Tensor:
        """Return the norm of each group of y [N, inner], in the wide dtype, times the gate's activation."""
        gated = (y * functional.silu(gate.to(y.dtype))).unflatten(-1, (self._groups, -1))
        normed = gated * torch.rsqrt(gated.pow(2).mean(-1, keepdim=True) + self.output_norm.eps)
        return (self.output_norm.weight * normed.flatten(1)).to(gate.dtype)

"""Mamba-2 in the place of attention (Dao and Gu, "Transformers are SSMs", 2024)."""

from __future__ import annotations

from types import MappingProxyType

import torch
from torch import nn

from sluice.models.blocks.attention import LayerContext
from sluice.models.blocks.state_mixer import StateMixer
from sluice.models.fp8_rows import Rows
from sluice.models.layers import RMSNorm
from sluice.models.linear import EmptyLinear, Layer
from sluice.models.ops import compute_dtype
from sluice.models.plan import DecoderConfig, StatePlan
from sluice.models.recurrence import Mamba2Heads, Mamba2Inputs


class Mamba2(StateMixer):
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

    def __init__(self, config: DecoderConfig, plan: StatePlan) -> None:
        super().__init__(config, plan)
        spec, state = config.spec, config.spec.state
        assert state is not None, "a model without states"
        hidden, dtype, wide = spec.hidden_size, spec.dtype, compute_dtype(spec.dtype)
        self._parts = (plan.inner_size, state.channels, state.value_heads)
        keys = state.key_heads * state.key_dim
        self._mixed = (plan.inner_size, keys, keys)
        self._key_dim, self._value_dim = state.key_dim, state.value_dim
        self.in_proj: Layer = EmptyLinear(hidden, sum(self._parts), bias=plan.proj_bias, dtype=dtype)
        for name in ("decay_rate", "skip", "dt_bias"):
            self.register_parameter(name, nn.Parameter(torch.empty(state.value_heads, dtype=wide)))
        self.output_norm = RMSNorm(plan.inner_size, plan.norm_eps, dtype)
        self._groups, self._limits = plan.groups, plan.time_step_limit

    def forward(self, x: Rows, context: LayerContext, rows: torch.Tensor | None) -> torch.Tensor:
        gate, columns, steps = self.in_proj(x).split(self._parts, dim=-1)
        v, k, q = self.conv(columns, context, "silu").split(self._mixed, dim=-1)
        q, k, v = (
            each.unflatten(-1, (-1, size))
            for each, size in ((q, self._key_dim), (k, self._key_dim), (v, self._value_dim))
        )
        step = context.own_state()
        heads = Mamba2Heads(self.decay_rate, self.dt_bias, self.skip, self._limits)
        y = context.ops.of_states(step.state.spec).mamba2(Mamba2Inputs(q, k, v, steps), heads, step)
        if rows is not None:
            y, gate = y[rows], gate[rows]
        y, gate = (each.reshape(len(each), self._groups, -1) for each in (y, gate))
        norm = self.output_norm.norm._replace(weight=self.output_norm.weight.view(self._groups, -1))
        out: torch.Tensor = self.out_proj(context.ops.gated_norm(y, gate, norm, gates_first=True))
        return out

"""A gated delta net in the place of attention (Yang, Kautz and Hatamizadeh, "Gated Delta Networks", 2024)."""

from __future__ import annotations

from types import MappingProxyType

import torch
from torch import nn

from sluice.models.blocks.attention import LayerContext
from sluice.models.blocks.state_mixer import StateMixer
from sluice.models.fp8_rows import Rows, plain
from sluice.models.layers import RMSNorm
from sluice.models.linear import EmptyLinear, Layer, Packer, WideLinear
from sluice.models.ops import compute_dtype
from sluice.models.plan import DecoderConfig, StatePlan
from sluice.models.recurrence import DeltaHeads, DeltaInputs


class GatedDelta(StateMixer):
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

    def __init__(self, config: DecoderConfig, plan: StatePlan) -> None:
        super().__init__(config, plan)
        spec, state = config.spec, config.spec.state
        assert state is not None, "a model without states"
        hidden, dtype, wide = spec.hidden_size, spec.dtype, compute_dtype(spec.dtype)
        heads, keys = state.value_heads, state.key_heads * state.key_dim
        self._mixed = (keys, keys, plan.inner_size)
        self._key_dim, self._value_dim = state.key_dim, state.value_dim
        self.in_proj_qkv: Layer = EmptyLinear(hidden, state.channels, bias=plan.proj_bias, dtype=dtype)
        self.in_proj_z: Layer = EmptyLinear(hidden, plan.inner_size, bias=plan.proj_bias, dtype=dtype)
        # Few rows, whose errors would grow from token to token.
        self.in_proj_b: Layer = WideLinear(hidden, heads, bias=plan.proj_bias, dtype=dtype)
        self.in_proj_a: Layer = WideLinear(hidden, heads, bias=plan.proj_bias, dtype=dtype)
        for name in ("decay_rate", "dt_bias"):
            self.register_parameter(name, nn.Parameter(torch.empty(heads, dtype=wide)))
        self.output_norm = RMSNorm(state.value_dim, plan.norm_eps, dtype)

    def pack_inputs(self, packer: Packer) -> None:
        """Join q, k, v and the gate into one layer, and the numbers of each head into another."""
        self.in_proj = packer.linear(self.in_proj_qkv, self.in_proj_z)
        self.in_proj_ba: Layer = packer.linear(self.in_proj_b, self.in_proj_a)
        del self.in_proj_qkv, self.in_proj_z, self.in_proj_b, self.in_proj_a

    def forward(self, x: Rows, context: LayerContext, rows: torch.Tensor | None) -> torch.Tensor:
        columns, gate = self.in_proj(x).split((sum(self._mixed), self._mixed[-1]), dim=-1)
        rates, steps = self.in_proj_ba(plain(x)).chunk(2, dim=-1)
        q, k, v = self.conv(columns, context, "silu").split(self._mixed, dim=-1)
        q, k, v, gate = (
            each.unflatten(-1, (-1, size))
            for each, size in ((q, self._key_dim), (k, self._key_dim), (v, self._value_dim), (gate, self._value_dim))
        )
        step = context.own_state()
        heads = DeltaHeads(self.decay_rate, self.dt_bias)
        y = context.ops.of_states(step.state.spec).delta_net(DeltaInputs(q, k, v, steps, rates), heads, step)
        if rows is not None:
            y, gate = y[rows], gate[rows]
        out: torch.Tensor = self.out_proj(context.ops.gated_norm(y, gate, self.output_norm.norm, gates_first=False))
        return out

"""The operations of layers with a state by the compiled kernels, in float32."""

from __future__ import annotations

import math

import torch

from sluice.attention.packed import STEPS, dense_heads
from sluice.attention.states import OncePerStep, StateSpec, StateStep, StateTable
from sluice.kernels.cpu.abi import CODES, CausalConvCall, RecurrenceCall
from sluice.kernels.cpu.library import Kernels
from sluice.models.ops import dense_rows
from sluice.models.recurrence import LENGTH_EPS, ConvWeights, DeltaHeads, DeltaInputs, Mamba2Heads, Mamba2Inputs, Tokens
from sluice.models.state_ops import StateOps

MAX_TAPS = 16
LANES = 16
"""The kernels compute so many elements of a head at once: its sizes are multiples."""


def has_kernel(spec: StateSpec) -> bool:
    """Return whether kernels compute the layers of a spec."""
    sizes = spec.key_dim % LANES == 0 and spec.value_dim % LANES == 0
    return spec.dtype in STEPS and spec.taps <= MAX_TAPS and sizes


class NativeStates(StateOps):
    """The operations for layers that have kernels."""

    def __init__(self, kernels: Kernels) -> None:
        self._kernels = kernels
        self._tables = OncePerStep(lambda step: StateTable.of(step.rows, step.q_lens))

    def causal_conv(self, x: torch.Tensor, conv: ConvWeights, step: StateStep) -> torch.Tensor:
        x, table, state = dense_rows(x), self._table(step), step.state
        taps = conv.weight.t().to(torch.float32).contiguous()
        bias = None if conv.bias is None else conv.bias.to(torch.float32)
        out = torch.empty(x.shape, dtype=x.dtype)
        call = CausalConvCall(
            x=x.data_ptr(),
            weight=taps.data_ptr(),
            bias=None if bias is None else bias.data_ptr(),
            out=out.data_ptr(),
            columns=state.columns.data_ptr(),
            anchor_columns=state.anchor_columns.data_ptr(),
            records=state.records_columns.data_ptr(),
            rows=table.rows.data_ptr(),
            exports=table.exports.data_ptr(),
            x_stride=x.stride(0),
            columns_stride=state.columns.stride(0),
            anchor_stride=state.anchor_columns.stride(0),
            record_stride=state.records_columns.stride(0),
            count=len(step.q_lens),
            tokens=len(x),
            channels=x.shape[1],
            taps=len(taps),
            ring=state.columns.shape[1],
            activation=CODES[conv.activation],
            is_bf16=x.dtype == torch.bfloat16,
        )
        self._kernels.causal_conv(call)
        return out

    def recurrence(self, tokens: Tokens, step: StateStep) -> torch.Tensor:
        g = tokens.g.float().contiguous()
        beta = None if tokens.beta is None else tokens.beta.float().contiguous()
        call = RecurrenceCall(g=g.data_ptr(), beta=None if beta is None else beta.data_ptr())
        return self._run(call, tokens.q, tokens.k, tokens.v, step)

    def delta_net(self, given: DeltaInputs, heads: DeltaHeads, step: StateStep) -> torch.Tensor:
        steps, rates = dense_rows(given.steps), dense_rows(given.rates)
        call = RecurrenceCall(
            steps=steps.data_ptr(),
            rates=rates.data_ptr(),
            decay_rates=heads.decay_rates.data_ptr(),
            step_bias=heads.step_bias.data_ptr(),
            steps_stride=steps.stride(0),
            rates_stride=rates.stride(0),
            is_bf16_steps=steps.dtype == torch.bfloat16,
            length_eps=LENGTH_EPS,
            q_scale=step.state.spec.key_dim**-0.5,
            most_step=math.inf,
        )
        return self._run(call, given.q, given.k, given.v, step)

    def mamba2(self, given: Mamba2Inputs, heads: Mamba2Heads, step: StateStep) -> torch.Tensor:
        steps = dense_rows(given.steps)
        call = RecurrenceCall(
            steps=steps.data_ptr(),
            decay_rates=heads.decay_rates.data_ptr(),
            step_bias=heads.step_bias.data_ptr(),
            skip=heads.skip.data_ptr(),
            steps_stride=steps.stride(0),
            is_bf16_steps=steps.dtype == torch.bfloat16,
            least_step=heads.limits[0],
            most_step=heads.limits[1],
        )
        return self._run(call, given.q, given.k, given.v, step)

    def _run(
        self, call: RecurrenceCall, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, step: StateStep
    ) -> torch.Tensor:
        state, table = step.state, self._table(step)
        q, k, v = dense_heads(q), dense_heads(k), dense_heads(v)
        spec, out = state.spec, torch.empty(v.shape, dtype=torch.float32)
        call.q, call.k, call.v, call.out = q.data_ptr(), k.data_ptr(), v.data_ptr(), out.data_ptr()
        call.q_stride, call.k_stride, call.v_stride = q.stride(0), k.stride(0), v.stride(0)
        call.is_bf16, call.is_bf16_v = q.dtype == torch.bfloat16, v.dtype == torch.bfloat16
        call.s, call.k_tail = state.s.data_ptr(), state.k.data_ptr()
        call.u_tail, call.g_tail = state.u.data_ptr(), state.g.data_ptr()
        call.s_stride, call.k_tail_stride = state.s.stride(0), state.k.stride(0)
        call.u_tail_stride, call.g_tail_stride = state.u.stride(0), state.g.stride(0)
        call.records, call.record_stride = state.records_s.data_ptr(), state.records_s.stride(0)
        call.rows, call.exports = table.rows.data_ptr(), table.exports.data_ptr()
        call.count, call.tokens = len(table.rows), len(v)
        call.key_heads, call.key_dim = spec.key_heads, spec.key_dim
        call.value_heads, call.value_dim = spec.value_heads, spec.value_dim
        call.takes_turns = spec.takes_turns
        self._kernels.recurrence(call)
        return out

    def _table(self, step: StateStep) -> StateTable:
        if step.rows.table is not None:
            return step.rows.table
        assert not self._kernels.are_reported, "rows that a replay would not find"
        return self._tables.of(step)

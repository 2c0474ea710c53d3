"""The operations of layers with a state by Triton kernels, in float32."""

from __future__ import annotations

import torch

from sluice.attention.packed import dense_heads
from sluice.attention.states import BLOCK, OncePerStep, StateSpec, StateStep, StateTable
from sluice.kernels.triton.causal_conv import Columns, causal_conv
from sluice.kernels.triton.recurrence import MAX_KEY_DIM, HeadStates, recurrence
from sluice.kernels.triton.state_rows import DeviceRows
from sluice.models.ops import dense_rows
from sluice.models.recurrence import ConvWeights, Tokens
from sluice.models.state_ops import StateOps

TYPES = (torch.bfloat16, torch.float16, torch.float32)


def has_triton_kernel(spec: StateSpec) -> bool:
    """Return whether kernels compute the layers of a spec."""
    return spec.dtype in TYPES and spec.key_dim <= MAX_KEY_DIM


class TritonStates(StateOps):
    """The operations for layers that have kernels; torch computes what is around the recurrence."""

    def __init__(self) -> None:
        self._rows = OncePerStep(device_rows)

    def causal_conv(self, x: torch.Tensor, conv: ConvWeights, step: StateStep) -> torch.Tensor:
        state, taps = step.state, conv.weight.t().float().contiguous()
        bias = None if conv.bias is None else conv.bias.float()
        columns = Columns(state.columns, state.anchor_columns, state.records_columns)
        return causal_conv(dense_rows(x), taps, bias, conv.activation, columns, self._rows.of(step))

    def recurrence(self, tokens: Tokens, step: StateStep) -> torch.Tensor:
        q, k, v, state = dense_heads(tokens.q), dense_heads(tokens.k), dense_heads(tokens.v), step.state
        beta = None if tokens.beta is None else tokens.beta.float().contiguous()
        heads = HeadStates(state.s, state.k, state.u, state.g, state.records_s, BLOCK, state.spec.takes_turns)
        return recurrence(q, k, v, tokens.g.float().contiguous(), beta, heads, self._rows.of(step))


def device_rows(step: StateStep) -> DeviceRows:
    """Return the rows of a step on the device of their states."""
    table, device = StateTable.of(step.rows, step.q_lens), step.state.columns.device
    exports = table.exports if len(table.exports) else torch.zeros((1, 2), dtype=torch.int32)
    return DeviceRows(table.rows.to(device), exports.to(device))

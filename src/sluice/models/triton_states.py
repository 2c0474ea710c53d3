"""The operations of layers with a state by Triton kernels, in float32."""

from __future__ import annotations

import torch

from sluice.attention.states import BLOCK, LayerState, StateRows, StateSpec, StateTable
from sluice.kernels.triton.causal_conv import Columns, causal_conv
from sluice.kernels.triton.recurrence import MAX_KEY_DIM, HeadStates, recurrence
from sluice.kernels.triton.state_rows import DeviceRows
from sluice.models.ops import dense_heads, dense_rows
from sluice.models.recurrence import Tokens

TYPES = (torch.bfloat16, torch.float16, torch.float32)


def has_triton_kernel(spec: StateSpec) -> bool:
    """Return whether kernels compute the layers of a spec."""
    return spec.dtype in TYPES and spec.key_dim <= MAX_KEY_DIM


class TritonStates:
    """The operations of `Ops` for layers that have kernels, with the rows of the last step, which all layers share."""

    def __init__(self) -> None:
        self._last: tuple[StateRows, tuple[int, ...], DeviceRows] | None = None

    def causal_conv(
        self,
        x: torch.Tensor,
        weight: torch.Tensor,
        bias: torch.Tensor | None,
        activation: str | None,
        state: LayerState,
        rows: StateRows,
        q_lens: tuple[int, ...],
    ) -> torch.Tensor:
        """As `Ops.causal_conv`."""
        taps = weight.t().float().contiguous()
        bias = None if bias is None else bias.float()
        columns = Columns(state.columns, state.anchor_columns, state.records_columns)
        return causal_conv(dense_rows(x), taps, bias, activation, columns, self._rows(rows, q_lens, x.device))

    def recurrence(self, tokens: Tokens, state: LayerState, rows: StateRows, q_lens: tuple[int, ...]) -> torch.Tensor:
        """As `Ops.recurrence`."""
        q, k, v = dense_heads(tokens.q), dense_heads(tokens.k), dense_heads(tokens.v)
        beta = None if tokens.beta is None else tokens.beta.float().contiguous()
        places = self._rows(rows, q_lens, v.device)
        heads = HeadStates(state.s, state.k, state.u, state.g, state.records_s, BLOCK, state.spec.takes_turns)
        return recurrence(q, k, v, tokens.g.float().contiguous(), beta, heads, places)

    def _rows(self, rows: StateRows, q_lens: tuple[int, ...], device: torch.device) -> DeviceRows:
        if self._last is None or self._last[0] is not rows or self._last[1] is not q_lens:
            table = StateTable.of(rows, q_lens)
            exports = table.exports if len(table.exports) else torch.zeros((1, 2), dtype=torch.int32)
            self._last = rows, q_lens, DeviceRows(table.rows.to(device), exports.to(device))
        return self._last[2]

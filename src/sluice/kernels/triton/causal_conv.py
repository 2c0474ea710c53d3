"""The convolution over the last tokens of each channel (`models/recurrence.py` defines it).

A program computes some channels of a row, and then keeps the columns that later steps need.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import triton
import triton.language as tl

from sluice.kernels.triton.recurrence import DeviceRows, places_of
from sluice.kernels.triton.rounding import to_type


class Columns(NamedTuple):
    """Those of a `LayerState`."""

    columns: torch.Tensor
    anchors: torch.Tensor
    records: torch.Tensor


TOKENS, CHANNELS = 16, 64
"""Of a tile."""


@triton.jit
def _column(x_ptr, columns_ptr, position, c, first, start, x_stride, ring, channels, mask):
    """Return columns [T, C] of tokens: inputs of this launch, or what an earlier one has left."""
    token = (first + position - start).to(tl.int64)
    is_new = (position >= start)[:, None] & mask
    given = tl.load(x_ptr + token[:, None] * x_stride + c[None, :], mask=is_new, other=0.0)
    place = ((position + ring) % ring).to(tl.int64)
    is_held = (position < start)[:, None] & mask
    return given + tl.load(columns_ptr + place[:, None] * channels + c[None, :], mask=is_held, other=0.0)


@triton.jit
def _causal_conv(
    x_ptr,
    weight_ptr,
    bias_ptr,
    out_ptr,
    columns_ptr,
    anchors_ptr,
    records_ptr,
    rows_ptr,
    exports_ptr,
    x_stride,
    columns_stride,
    anchor_stride,
    record_stride,
    ring,
    channels,
    TAPS: tl.constexpr,
    BEFORE: tl.constexpr,
    HAS_BIAS: tl.constexpr,
    IS_SILU: tl.constexpr,
    TOKENS: tl.constexpr,
    CHANNELS: tl.constexpr,
):
    row = tl.program_id(0)
    slot, anchor, start, stop, new_anchor, first = places_of(rows_ptr, row)
    dtype: tl.constexpr = x_ptr.dtype.element_ty
    c = tl.program_id(1) * CHANNELS + tl.arange(0, CHANNELS)
    inside = c < channels
    columns_ptr += slot * columns_stride
    begin = start
    while begin < stop:
        position = begin + tl.arange(0, TOKENS)
        mask = (position < stop)[:, None] & inside[None, :]
        total = tl.zeros((TOKENS, CHANNELS), tl.float32)
        for i in tl.static_range(TAPS):
            tap = tl.load(weight_ptr + i * channels + c, mask=inside, other=0.0)
            seen = position - (TAPS - 1) + i
            column = _column(x_ptr, columns_ptr, seen, c, first, start, x_stride, ring, channels, mask)
            total += column.to(tl.float32) * tap[None, :]
        if HAS_BIAS:
            total += tl.load(bias_ptr + c, mask=inside, other=0.0)[None, :]
        if IS_SILU:
            total = total / (1 + tl.exp(-total))
        token = (first + position - start).to(tl.int64)
        tl.store(out_ptr + token[:, None] * channels + c[None, :], to_type(total, dtype), mask=mask)
        begin += TOKENS
    i = tl.arange(0, BEFORE)
    are_kept = (i < TAPS - 1)[:, None] & inside[None, :]
    places = i[:, None] * channels + c[None, :]
    export = exports_ptr + 2 * tl.load(rows_ptr + row * 8 + 6)
    for _ in range(tl.load(rows_ptr + row * 8 + 7)):
        before = tl.load(export) - (TAPS - 1) + i
        made = _column(x_ptr, columns_ptr, before, c, first, start, x_stride, ring, channels, are_kept)
        record = tl.load(export + 1).to(tl.int64) * record_stride
        tl.store(records_ptr + record + places, made, mask=are_kept)
        export += 2
    if new_anchor > anchor:
        of_anchor = new_anchor - (TAPS - 1) + i
        moved = _column(x_ptr, columns_ptr, of_anchor, c, first, start, x_stride, ring, channels, are_kept)
        tl.store(anchors_ptr + slot * anchor_stride + places, moved, mask=are_kept)
    tl.debug_barrier()
    begin = tl.maximum(start, stop - ring)
    while begin < stop:
        position = begin + tl.arange(0, TOKENS)
        mask = (position < stop)[:, None] & inside[None, :]
        token = (first + position - start).to(tl.int64)
        column = tl.load(x_ptr + token[:, None] * x_stride + c[None, :], mask=mask, other=0.0)
        place = (position % ring).to(tl.int64)
        tl.store(columns_ptr + place[:, None] * channels + c[None, :], column, mask=mask)
        begin += TOKENS


def causal_conv(
    x: torch.Tensor,
    taps: torch.Tensor,
    bias: torch.Tensor | None,
    activation: str | None,
    state: Columns,
    rows: DeviceRows,
) -> torch.Tensor:
    """Compute the convolution of `StateOps.causal_conv`, and keep columns.

    Args:
        x: [N, channels], the last dimension without gaps.
        taps: [taps, channels] float32 without gaps.
        bias: [channels] float32.
        activation: "silu" or None.
        rows: of the step.
    """
    channels, out = x.shape[1], torch.empty(x.shape, dtype=x.dtype, device=x.device)
    _causal_conv[(len(rows.rows), triton.cdiv(channels, CHANNELS))](
        x,
        taps,
        taps if bias is None else bias,
        out,
        state.columns,
        state.anchors,
        state.records,
        rows.rows,
        rows.exports,
        x.stride(0),
        state.columns.stride(0),
        state.anchors.stride(0),
        state.records.stride(0),
        state.columns.shape[1],
        channels,
        TAPS=len(taps),
        BEFORE=triton.next_power_of_2(max(1, len(taps) - 1)),
        HAS_BIAS=bias is not None,
        IS_SILU=activation == "silu",
        TOKENS=TOKENS,
        CHANNELS=CHANNELS,
    )
    return out

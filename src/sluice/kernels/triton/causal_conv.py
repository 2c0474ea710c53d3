"""The convolution over the last tokens of each channel (`models/recurrence.py` defines it).

A program computes some channels of a row, and then keeps the columns that later steps need.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import triton
import triton.language as tl

from sluice.kernels.triton.rounding import to_type
from sluice.kernels.triton.state_rows import DeviceRows, export_at, exports_of, row_of, token_of


class Columns(NamedTuple):
    """Those of a `LayerState`."""

    columns: torch.Tensor
    anchors: torch.Tensor
    records: torch.Tensor


TOKENS, CHANNELS = 16, 64
"""Of a tile."""


class _Inputs(NamedTuple):
    """Inputs and output of a launch."""

    x: torch.Tensor
    weight: torch.Tensor
    bias: torch.Tensor
    out: torch.Tensor
    stride: int
    """Of x."""


class _Slots(NamedTuple):
    """`Columns` with their strides, and the number of columns in a slot."""

    columns: torch.Tensor
    anchors: torch.Tensor
    records: torch.Tensor
    columns_stride: int
    anchor_stride: int
    record_stride: int
    ring: int


class _Part(NamedTuple):
    """Channels in a kernel that a program computes."""

    c: tl.tensor
    inside: tl.tensor
    count: tl.tensor
    """Of all channels."""
    columns: tl.tensor
    """A pointer to those of the slot."""
    ring: tl.tensor


@triton.jit
def _column(inputs, row, part, position, mask):
    """Return columns [T, C] of tokens: inputs of this launch, or what an earlier one has left."""
    token = token_of(row, position)[:, None] * inputs.stride
    is_new = (position >= row.start)[:, None] & mask
    given = tl.load(inputs.x + token + part.c[None, :], mask=is_new, other=0.0)
    place = ((position + part.ring) % part.ring).to(tl.int64)[:, None] * part.count
    is_held = (position < row.start)[:, None] & mask
    return given + tl.load(part.columns + place + part.c[None, :], mask=is_held, other=0.0)


@triton.jit
def _store_out(inputs, row, part, position, TAPS: tl.constexpr, HAS_BIAS: tl.constexpr, IS_SILU: tl.constexpr):
    """Compute and store the output of tokens."""
    mask = (position < row.stop)[:, None] & part.inside[None, :]
    total = tl.zeros(mask.shape, tl.float32)
    for i in tl.static_range(TAPS):
        tap = tl.load(inputs.weight + i * part.count + part.c, mask=part.inside, other=0.0)
        column = _column(inputs, row, part, position - (TAPS - 1) + i, mask)
        total += column.to(tl.float32) * tap[None, :]
    if HAS_BIAS:
        total += tl.load(inputs.bias + part.c, mask=part.inside, other=0.0)[None, :]
    if IS_SILU:
        total = total / (1 + tl.exp(-total))
    to = inputs.out + token_of(row, position)[:, None] * part.count + part.c[None, :]
    tl.store(to, to_type(total, inputs.x.dtype.element_ty), mask=mask)


@triton.jit
def _copy_before(inputs, slots, rows, row, part, TAPS: tl.constexpr, BEFORE: tl.constexpr):
    """Copy the columns before positions: to the records that the row makes there, and to a new anchor."""
    i = tl.arange(0, BEFORE)
    are_kept = (i < TAPS - 1)[:, None] & part.inside[None, :]
    places = i[:, None] * part.count + part.c[None, :]
    export, count = exports_of(rows, tl.program_id(0))
    for _ in range(count):
        position, record, export = export_at(export, slots.record_stride)
        made = _column(inputs, row, part, position - (TAPS - 1) + i, are_kept)
        tl.store(slots.records + record + places, made, mask=are_kept)
    if row.new_anchor > row.anchor:
        moved = _column(inputs, row, part, row.new_anchor - (TAPS - 1) + i, are_kept)
        tl.store(slots.anchors + row.slot * slots.anchor_stride + places, moved, mask=are_kept)


@triton.jit
def _store_columns(inputs, row, part, TOKENS: tl.constexpr):
    """Store the columns of the last tokens of a row in its slot."""
    begin = tl.maximum(row.start, row.stop - part.ring)
    while begin < row.stop:
        position = begin + tl.arange(0, TOKENS)
        mask = (position < row.stop)[:, None] & part.inside[None, :]
        token = token_of(row, position)[:, None] * inputs.stride
        column = tl.load(inputs.x + token + part.c[None, :], mask=mask, other=0.0)
        place = (position % part.ring).to(tl.int64)[:, None] * part.count
        tl.store(part.columns + place + part.c[None, :], column, mask=mask)
        begin += TOKENS


@triton.jit
def _causal_conv(
    inputs,
    slots,
    rows,
    channels,
    TAPS: tl.constexpr,
    BEFORE: tl.constexpr,
    HAS_BIAS: tl.constexpr,
    IS_SILU: tl.constexpr,
    TOKENS: tl.constexpr,
    CHANNELS: tl.constexpr,
):
    row = row_of(rows, tl.program_id(0))
    c = tl.program_id(1) * CHANNELS + tl.arange(0, CHANNELS)
    part = _Part(c, c < channels, channels, slots.columns + row.slot * slots.columns_stride, slots.ring)
    begin = row.start
    while begin < row.stop:
        _store_out(inputs, row, part, begin + tl.arange(0, TOKENS), TAPS, HAS_BIAS, IS_SILU)
        begin += TOKENS
    _copy_before(inputs, slots, rows, row, part, TAPS, BEFORE)
    tl.debug_barrier()
    _store_columns(inputs, row, part, TOKENS)


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
    columns, anchors, records = state
    channels, out = x.shape[1], torch.empty(x.shape, dtype=x.dtype, device=x.device)
    _causal_conv[(len(rows.rows), triton.cdiv(channels, CHANNELS))](
        _Inputs(x, taps, taps if bias is None else bias, out, x.stride(0)),
        _Slots(*state, columns.stride(0), anchors.stride(0), records.stride(0), columns.shape[1]),
        rows,
        channels,
        TAPS=len(taps),
        BEFORE=triton.next_power_of_2(max(1, len(taps) - 1)),
        HAS_BIAS=bias is not None,
        IS_SILU=activation == "silu",
        TOKENS=TOKENS,
        CHANNELS=CHANNELS,
    )
    return out

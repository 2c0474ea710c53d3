"""A step's rows of layers with a state, as kernels read them (`attention/states.py` says what a `StateTable` has)."""

from __future__ import annotations

from typing import NamedTuple

import torch
import triton
import triton.language as tl


class DeviceRows(NamedTuple):
    """A `StateTable` on the device."""

    rows: torch.Tensor
    """[B, 8] int32"""
    exports: torch.Tensor
    """[at least 1, 2] int32"""


class Row(NamedTuple):
    """A row in a kernel. Its fields are scalars there."""

    slot: tl.tensor
    anchor: tl.tensor
    start: tl.tensor
    stop: tl.tensor
    new_anchor: tl.tensor
    first: tl.tensor
    """Its first token of the step."""


@triton.jit
def row_of(rows, number):
    fields = rows.rows + number * 8
    slot, anchor, start = tl.load(fields).to(tl.int64), tl.load(fields + 1), tl.load(fields + 2)
    return Row(slot, anchor, start, tl.load(fields + 3), tl.load(fields + 4), tl.load(fields + 5))


@triton.jit
def token_of(row, position):
    """Return where the tokens at positions of a `Row` are in the step."""
    return (row.first + position - row.start).to(tl.int64)


@triton.jit
def exports_of(rows, number):
    """Return a pointer to the first export of the row with a number, and how many it has."""
    fields = rows.rows + number * 8
    return rows.exports + 2 * tl.load(fields + 6), tl.load(fields + 7)


@triton.jit
def export_at(export, record_stride):
    """Return the position of an export, where its record begins, and a pointer to the next one."""
    return tl.load(export), tl.load(export + 1).to(tl.int64) * record_stride, export + 2

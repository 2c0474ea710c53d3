"""Adds to the outputs of a layer what the adapters of their rows give: one launch for all products with A, and one a
part of the layer for those with B, whatever adapters the rows have, so that steps can be captured.

A program computes a tile of rows for one adapter, and ends at once if no row of the tile has it. Rows of other adapters
are zeros in its products. Sums are float32, in the order of the inputs, so a row's result depends on no other row.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import triton
import triton.language as tl

from sluice.kernels.triton.rounding import IS_INTERPRETED, to_type

HEIGHT = 16
"""Rows of a tile, for any number of rows: another size might sum in another order."""
OUTPUTS, INPUTS = 64, 128
"""Outputs and inputs of a tile."""
LEAST_RANK = 16
"""Least inner size of a matrix product."""


class LoraMatrices(NamedTuple):
    """The matrices of all adapters for one layer, which may have several parts."""

    a: torch.Tensor
    """[slots, parts, rank, inputs], without gaps"""
    b: torch.Tensor
    """[slots, rank, outputs of all parts], without gaps inside a row"""
    ranks: torch.Tensor
    """[slots, parts] int32; 0: the adapter leaves the part as it is"""
    scales: torch.Tensor
    """[slots, parts] float32"""
    widths: tuple[int, ...]
    """Outputs of each part."""


@triton.jit(do_not_specialize=["rows"])
def _shrink(
    x_ptr,
    tokens_ptr,
    a_ptr,
    ranks_ptr,
    scales_ptr,
    inner_ptr,
    x_stride,
    rows,
    inputs,
    max_rank,
    PARTS: tl.constexpr,
    RANK: tl.constexpr,
    HEIGHT: tl.constexpr,
    INPUTS: tl.constexpr,
):
    row = tl.program_id(0) * HEIGHT + tl.arange(0, HEIGHT)
    part, slot = tl.program_id(1), tl.program_id(2)
    is_row = (row < rows) & (tl.load(tokens_ptr + row, mask=row < rows, other=-1) == slot)
    own = tl.load(ranks_ptr + slot * PARTS + part)
    if (tl.sum(is_row.to(tl.int32), 0) == 0) | (own == 0):
        return
    rank = tl.arange(0, RANK)
    a_ptr += (slot * PARTS + part).to(tl.int64) * max_rank * inputs
    sums = tl.zeros((HEIGHT, RANK), dtype=tl.float32)
    for first in range(0, inputs, INPUTS):
        column = first + tl.arange(0, INPUTS)
        is_column = (column < inputs)[None]
        at = row.to(tl.int64)[:, None] * x_stride + column[None]
        x = tl.load(x_ptr + at, mask=is_row[:, None] & is_column, other=0.0)
        at = rank[:, None] * inputs + column[None]
        right = tl.trans(tl.load(a_ptr + at, mask=(rank < own)[:, None] & is_column, other=0.0))
        if IS_INTERPRETED:  # it would multiply the bit patterns of bfloat16
            x, right = x.to(tl.float32), right.to(tl.float32)
        sums = tl.dot(x, right, sums, input_precision="ieee")
    sums *= tl.load(scales_ptr + slot * PARTS + part)
    to = inner_ptr + (row[:, None] * PARTS + part) * RANK + rank[None]
    tl.store(to, sums, mask=is_row[:, None])


@triton.jit(do_not_specialize=["rows", "part"])
def _expand(
    inner_ptr,
    tokens_ptr,
    b_ptr,
    ranks_ptr,
    y_ptr,
    y_stride,
    b_slot_stride,
    b_stride,
    rows,
    first_output,
    outputs,
    part,
    PARTS: tl.constexpr,
    RANK: tl.constexpr,
    HEIGHT: tl.constexpr,
    OUTPUTS: tl.constexpr,
):
    row = tl.program_id(0) * HEIGHT + tl.arange(0, HEIGHT)
    slot = tl.program_id(2)
    is_row = (row < rows) & (tl.load(tokens_ptr + row, mask=row < rows, other=-1) == slot)
    own = tl.load(ranks_ptr + slot * PARTS + part)
    if (tl.sum(is_row.to(tl.int32), 0) == 0) | (own == 0):
        return
    output = tl.program_id(1) * OUTPUTS + tl.arange(0, OUTPUTS)
    is_output = (output < outputs)[None]
    output += first_output
    rank = tl.arange(0, RANK)
    at = (row[:, None] * PARTS + part) * RANK + rank[None]
    inner = tl.load(inner_ptr + at, mask=is_row[:, None], other=0.0)
    b_ptr += slot.to(tl.int64) * b_slot_stride
    right = tl.load(b_ptr + rank[:, None] * b_stride + output[None], mask=(rank < own)[:, None] & is_output, other=0.0)
    sums = tl.dot(inner, right.to(tl.float32), input_precision="ieee")
    at = row.to(tl.int64)[:, None] * y_stride + output[None]
    inside = is_row[:, None] & is_output
    y = tl.load(y_ptr + at, mask=inside, other=0.0).to(tl.float32)
    tl.store(y_ptr + at, to_type(y + sums, y_ptr.dtype.element_ty), mask=inside)


def add_lora(y: torch.Tensor, x: torch.Tensor, tokens: torch.Tensor, matrices: LoraMatrices) -> None:
    """Add to y what the adapters of its rows give: `scale * (x A^T) B^T`, without waiting for the device.

    The product with A stays in float32, as the one with B then is.

    Args:
        y: [N, outputs of all parts], without gaps inside a row, in any dtype of 32 or 16 bits.
        x: [N, inputs], likewise, in the dtype of the matrices.
        tokens: [N] int32, the slot of each row's adapter; another number: none.
    """
    slots, parts, max_rank, inputs = matrices.a.shape
    rows, rank = len(x), max(LEAST_RANK, triton.next_power_of_2(max_rank))
    if rows == 0:
        return
    inner = torch.empty((rows, parts, rank), dtype=torch.float32, device=x.device)
    tiles = triton.cdiv(rows, HEIGHT)
    _shrink[(tiles, parts, slots)](
        x,
        tokens,
        matrices.a,
        matrices.ranks,
        matrices.scales,
        inner,
        x.stride(0),
        rows,
        inputs,
        max_rank,
        PARTS=parts,
        RANK=rank,
        HEIGHT=HEIGHT,
        INPUTS=INPUTS,
    )
    first = 0
    for part, width in enumerate(matrices.widths):
        _expand[(tiles, triton.cdiv(width, OUTPUTS), slots)](
            inner,
            tokens,
            matrices.b,
            matrices.ranks,
            y,
            y.stride(0),
            matrices.b.stride(0),
            matrices.b.stride(1),
            rows,
            first,
            width,
            part,
            PARTS=parts,
            RANK=rank,
            HEIGHT=HEIGHT,
            OUTPUTS=OUTPUTS,
        )
        first += width

"""Multiplies rows with a weight of four bits (W4A16): numbers are dequantised in registers, tile by tile.

The numbers are read once for each block of rows, as bytes of two. Sums are float32, in the order of the inputs.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from sluice.kernels.triton.rounding import IS_INTERPRETED, to_type

INPUTS = 64
"""Inputs of a tile. A group is a multiple of them, or divides them."""
FEW_ROWS = 16
"""Rows of a tensor core's smallest tile: a decode of no more reads the weight once."""


@triton.jit(do_not_specialize=["rows"])
def _int4_linear(
    x_ptr,
    values_ptr,
    scales_ptr,
    minimums_ptr,
    bias_ptr,
    out_ptr,
    rows,
    x_stride,
    inputs,
    outputs,
    groups,
    GROUP: tl.constexpr,
    HAS_MINIMUMS: tl.constexpr,
    HAS_BIAS: tl.constexpr,
    ROWS: tl.constexpr,
    OUTPUTS: tl.constexpr,
    INPUTS: tl.constexpr,
):
    row = tl.program_id(1) * ROWS + tl.arange(0, ROWS)
    output = tl.program_id(0) * OUTPUTS + tl.arange(0, OUTPUTS)
    is_row, is_output = row < rows, output < outputs
    at_row, at_output = row.to(tl.int64), output.to(tl.int64)
    dtype: tl.constexpr = x_ptr.dtype.element_ty
    sums = tl.zeros((ROWS, OUTPUTS), dtype=tl.float32)
    for first in range(0, inputs, INPUTS):
        column, pair = first + tl.arange(0, INPUTS), first // 2 + tl.arange(0, INPUTS // 2)
        x_mask = is_row[:, None] & (column < inputs)[None]
        x = tl.load(x_ptr + at_row[:, None] * x_stride + column[None], mask=x_mask, other=0.0)
        pair_mask = is_output[:, None] & (pair < inputs // 2)[None]
        both = tl.load(values_ptr + at_output[:, None] * (inputs // 2) + pair[None], mask=pair_mask, other=0)
        numbers = tl.interleave(both & 15, both >> 4).to(tl.float32)
        if GROUP >= INPUTS:
            at = at_output[:, None] * groups + first // GROUP
            mask = is_output[:, None]
        else:
            at = at_output[:, None] * groups + (column // GROUP)[None]
            mask = is_output[:, None] & (column < inputs)[None]
        scales = tl.load(scales_ptr + at, mask=mask, other=0.0).to(tl.float32)
        if HAS_MINIMUMS:
            weight = numbers * scales + tl.load(minimums_ptr + at, mask=mask, other=0.0).to(tl.float32)
        else:
            weight = (numbers - 8.0) * scales
        right = tl.trans(to_type(weight, dtype))
        if IS_INTERPRETED:  # it would multiply the bit patterns of bfloat16
            x, right = x.to(tl.float32), right.to(tl.float32)
        sums = tl.dot(x, right, sums)
    if HAS_BIAS:
        sums += tl.load(bias_ptr + output, mask=is_output, other=0.0).to(tl.float32)[None]
    to = out_ptr + at_row[:, None] * outputs + at_output[None]
    tl.store(to, to_type(sums, dtype), mask=is_row[:, None] & is_output[None])


def int4_linear(
    x: torch.Tensor,
    values: torch.Tensor,
    scales: torch.Tensor,
    minimums: torch.Tensor | None,
    bias: torch.Tensor | None,
) -> torch.Tensor:
    """Return the product of x [N, inputs] with a weight of four bits, rounded to x's dtype, [N, outputs] in it.

    Args:
        x: bfloat16 or float16, without gaps inside a row.
        values: [outputs, inputs / 2] uint8, the number of the even input in the lower four bits.
        scales: [outputs, groups] of a floating-point dtype.
        minimums: as the scales; None: 8 stands for zero.
        bias: [outputs] or None.
    """
    rows, inputs = x.shape
    outputs, groups = scales.shape
    out = torch.empty((rows, outputs), dtype=x.dtype, device=x.device)
    if rows == 0:
        return out
    is_few = rows <= FEW_ROWS
    height, width = (FEW_ROWS, 32) if is_few else (64, 64)
    _int4_linear[(triton.cdiv(outputs, width), triton.cdiv(rows, height))](
        x,
        values,
        scales,
        scales if minimums is None else minimums,
        scales if bias is None else bias,
        out,
        rows,
        x.stride(0),
        inputs,
        outputs,
        groups,
        GROUP=inputs // groups,
        HAS_MINIMUMS=minimums is not None,
        HAS_BIAS=bias is not None,
        ROWS=height,
        OUTPUTS=width,
        INPUTS=INPUTS,
        num_warps=4,
        num_stages=4,
    )
    return out

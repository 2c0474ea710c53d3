"""Computes norms over rows, after adding a residual if there is one. A row is read once and written once.

RMS norm: Zhang and Sennrich, 2019. Layer norm: Ba, Kiros and Hinton, 2016. Sums are float32. Intermediate
results are rounded where `Ops` rounds them.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from sluice.kernels.triton.rounding import narrowed, to_fp8, to_type

MAX_SIZE = 1 << 15
"""Largest row, in elements: a row is kept in registers."""


@triton.jit
def _norm_rows(
    x_ptr,
    delta_ptr,
    weight_ptr,
    bias_ptr,
    total_ptr,
    out_ptr,
    scale_ptr,
    x_stride,
    delta_stride,
    size,
    eps,
    HAS_DELTA: tl.constexpr,
    IS_LAYER_NORM: tl.constexpr,
    TO_FP8: tl.constexpr,
    BLOCK: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    column = tl.arange(0, BLOCK)
    inside = column < size
    dtype: tl.constexpr = x_ptr.dtype.element_ty
    x = tl.load(x_ptr + row * x_stride + column, mask=inside, other=0.0).to(tl.float32)
    if HAS_DELTA:
        x += tl.load(delta_ptr + row * delta_stride + column, mask=inside, other=0.0).to(tl.float32)
        x = narrowed(x, dtype)
        tl.store(total_ptr + row * size + column, to_type(x, dtype), mask=inside)
    weight = tl.load(weight_ptr + column, mask=inside, other=0.0).to(tl.float32)
    if IS_LAYER_NORM:
        x = tl.where(inside, x - tl.sum(x, 0) / size, 0.0)
        bias = tl.load(bias_ptr + column, mask=inside, other=0.0).to(tl.float32)
        out = x * tl.rsqrt(tl.sum(x * x, 0) / size + eps) * weight + bias
    else:
        out = x * tl.rsqrt(tl.sum(x * x, 0) / size + eps) * weight
    if TO_FP8:
        values, scale = to_fp8(tl.where(inside, narrowed(out, dtype), 0.0))
        tl.store(out_ptr + row * size + column, values, mask=inside)
        tl.store(scale_ptr + row, scale)
    else:
        tl.store(out_ptr + row * size + column, to_type(out, dtype), mask=inside)


def norm_rows(
    x: torch.Tensor,
    delta: torch.Tensor | None,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    eps: float,
    *,
    to_fp8: bool = False,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor | None]:
    """Return `x + delta` and its norm, a layer norm if there is a bias, quantised if asked.

    Args:
        x, delta: [N, size], `size` at most `MAX_SIZE`, without gaps inside a row; float32, bfloat16 or float16.
        weight, bias: [size] float32.

    Returns:
        The sum (x itself without a delta) and its norm, both [N, size], and the scales [N] float32 of a norm that is
        quantised. The norm is a new tensor, and so is a sum.
    """
    rows, size = x.shape
    out = torch.empty((rows, size), dtype=torch.float8_e4m3fn if to_fp8 else x.dtype, device=x.device)
    scales = torch.empty(rows, dtype=torch.float32, device=x.device) if to_fp8 else None
    total = x if delta is None else torch.empty((rows, size), dtype=x.dtype, device=x.device)
    if rows == 0:
        return total, out, scales
    block = triton.next_power_of_2(size)
    _norm_rows[(rows,)](
        x,
        x if delta is None else delta,
        weight,
        weight if bias is None else bias,
        total,
        out,
        out if scales is None else scales,
        x.stride(0),
        0 if delta is None else delta.stride(0),
        size,
        eps,
        HAS_DELTA=delta is not None,
        IS_LAYER_NORM=bias is not None,
        TO_FP8=to_fp8,
        BLOCK=block,
        num_warps=min(max(block // 512, 1), 16),
    )
    return total, out, scales

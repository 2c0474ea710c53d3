"""Quantises rows to e4m3, where no norm or gate before has done it."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from sluice.kernels.triton.rounding import to_fp8


@triton.jit
def _quantize_rows(x_ptr, out_ptr, scale_ptr, x_stride, size, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    column = tl.arange(0, BLOCK)
    inside = column < size
    values, scale = to_fp8(tl.load(x_ptr + row * x_stride + column, mask=inside, other=0.0).to(tl.float32))
    tl.store(out_ptr + row * size + column, values, mask=inside)
    tl.store(scale_ptr + row, scale)


def quantize_rows(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return rows x [N, size] in e4m3, and the scale of each [N] float32.

    Args:
        x: without gaps inside a row, `size` at most `norms.MAX_SIZE`; float32, bfloat16 or float16.
    """
    rows, size = x.shape
    out = torch.empty((rows, size), dtype=torch.float8_e4m3fn, device=x.device)
    scales = torch.empty(rows, dtype=torch.float32, device=x.device)
    if rows:
        block = triton.next_power_of_2(size)
        warps = min(max(block // 512, 1), 16)
        _quantize_rows[(rows,)](x, out, scales, x.stride(0), size, BLOCK=block, num_warps=warps)
    return out, scales

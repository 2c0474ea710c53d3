"""Rounds to a kernel's output type as torch does: to nearest, ties to even."""

from __future__ import annotations

import triton
import triton.language as tl

IS_INTERPRETED: tl.constexpr = tl.constexpr(bool(triton.knobs.runtime.interpret))
"""Triton's interpreter truncates float32 to bfloat16 and e4m3, while a device rounds it."""


@triton.jit
def to_type(x, dtype: tl.constexpr):
    """Convert float32 to `dtype`."""
    if IS_INTERPRETED and dtype == tl.bfloat16:
        bits = x.to(tl.uint32, bitcast=True)
        rounded = tl.where(x == x, bits + 0x7FFF + ((bits >> 16) & 1), bits)
        return (rounded >> 16).to(tl.uint16).to(tl.bfloat16, bitcast=True)
    if IS_INTERPRETED and dtype == tl.float8e4nv:
        bits = x.to(tl.uint32, bitcast=True) & 0x7FFFFFFF
        normal = ((bits + 0x7FFFF + ((bits >> 20) & 1)) >> 20) - (120 << 3)
        small = (tl.abs(x) * 512 + 8388608.0).to(tl.uint32, bitcast=True) & 0xFF  # below 2**-6, in steps of 2**-9
        byte = tl.where(tl.abs(x) < 0.015625, small, normal) | ((x.to(tl.uint32, bitcast=True) >> 24) & 0x80)
        return tl.where(x == x, byte, 0x7F).to(tl.uint8).to(tl.float8e4nv, bitcast=True)
    return x.to(dtype)


@triton.jit
def to_fp8(x):
    """Quantise a row of float32 to e4m3, as `fp8_rows` does: its values, and its scale."""
    largest = tl.max(tl.abs(x), 0)
    is_zero = largest < 1e-30
    values = to_type(x * tl.where(is_zero, 0.0, tl.div_rn(448.0, largest)), tl.float8e4nv)
    return values, tl.where(is_zero, 0.0, tl.div_rn(largest, 448.0))


@triton.jit
def narrowed(x, dtype: tl.constexpr):
    """Round float32 to `dtype`, and return it as float32."""
    return to_type(x, dtype).to(tl.float32)

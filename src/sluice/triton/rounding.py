"""Rounding to a kernel's output type as torch rounds: to nearest, ties to even."""

from __future__ import annotations

import triton
import triton.language as tl

IS_INTERPRETED: tl.constexpr = tl.constexpr(bool(triton.knobs.runtime.interpret))
"""Triton's interpreter cuts a float32 off where bfloat16 ends, a device rounds it."""


@triton.jit
def to_type(x, dtype: tl.constexpr):
    """float32 to `dtype`."""
    if IS_INTERPRETED and dtype == tl.bfloat16:
        bits = x.to(tl.uint32, bitcast=True)
        rounded = tl.where(x == x, bits + 0x7FFF + ((bits >> 16) & 1), bits)
        return (rounded >> 16).to(tl.uint16).to(tl.bfloat16, bitcast=True)
    return x.to(dtype)


@triton.jit
def narrowed(x, dtype: tl.constexpr):
    """float32 as `dtype` would keep it, still float32."""
    return to_type(x, dtype).to(tl.float32)

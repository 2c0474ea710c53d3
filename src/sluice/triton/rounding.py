"""Rounds to a kernel's output type as torch does: to nearest, ties to even."""

from __future__ import annotations

import triton
import triton.language as tl

IS_INTERPRETED: tl.constexpr = tl.constexpr(bool(triton.knobs.runtime.interpret))
"""Triton's interpreter truncates float32 to bfloat16, while a device rounds it."""


@triton.jit
def to_type(x, dtype: tl.constexpr):
    """Convert float32 to `dtype`."""
    if IS_INTERPRETED and dtype == tl.bfloat16:
        bits = x.to(tl.uint32, bitcast=True)
        rounded = tl.where(x == x, bits + 0x7FFF + ((bits >> 16) & 1), bits)
        return (rounded >> 16).to(tl.uint16).to(tl.bfloat16, bitcast=True)
    return x.to(dtype)


@triton.jit
def narrowed(x, dtype: tl.constexpr):
    """Round float32 to `dtype`, and return it as float32."""
    return to_type(x, dtype).to(tl.float32)

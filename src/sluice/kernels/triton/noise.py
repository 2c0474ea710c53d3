"""`runner.noise` in a kernel: the same bits from the same noise key, position and vocabulary id.

The integers are those of SplitMix64 (Steele, Lea and Flood, OOPSLA 2014), equal to the last bit. The logarithms that
turn them into Gumbel noise may differ from torch's in their last bits, as torch's own do between devices.
"""

from __future__ import annotations

import triton
import triton.language as tl

_WEYL: tl.constexpr = tl.constexpr(0x9E3779B97F4A7C15)
_MULTIPLY_1: tl.constexpr = tl.constexpr(0xBF58476D1CE4E5B9)
_MULTIPLY_2: tl.constexpr = tl.constexpr(0x94D049BB133111EB)


@triton.jit
def _mix(z):
    z = (z ^ (z >> 30)) * _MULTIPLY_1
    z = (z ^ (z >> 27)) * _MULTIPLY_2
    return z ^ (z >> 31)


@triton.jit
def row_key(noise_key, position):
    """Return the key of a row (uint64) from its noise key and position (int64)."""
    step = _mix((position + 1).to(tl.uint64, bitcast=True) * _WEYL)
    return _mix(noise_key.to(tl.uint64, bitcast=True) + step)


@triton.jit
def _minus_log1p(u):
    """Return -log(1 - u) of float32 u in (0, 1). It is precise for small u, since small draws win."""
    w = 1.0 - u
    series = u * (1.0 + u * (0.5 + u * (1.0 / 3 + u * (0.25 + u * (0.2 + u * (1.0 / 6))))))
    return tl.where(u < 0.0625, series, -tl.log(w) + ((w - 1.0) + u) / w)


@triton.jit
def gumbel(key, ids):
    """Return standard Gumbel noise (float32) for vocabulary ids of the row with this key."""
    bits = _mix(key + (ids + 1).to(tl.uint64) * _WEYL) >> 12
    uniform = (bits.to(tl.int64).to(tl.float32) + 0.5) * 2.220446049250313e-16  # 2 ** -52
    uniform = tl.minimum(uniform, 0.99999994)  # the largest float32 below 1
    return -tl.log(_minus_log1p(uniform))

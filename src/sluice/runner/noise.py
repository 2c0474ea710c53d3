"""Randomness as a function: the noise of one token of one request, on any batch, slot or device.

    (seed, sample_index)   --noise_key-->  noise key    on the host, once per request
    (noise key, position)  ------------->  row key      one per sampled row
    (row key, vocabulary id)  ---------->  64 bits      one per logit

Each arrow is SplitMix64's output function over a Weyl sequence (Steele, Lea and Flood, "Fast splittable pseudorandom
number generators", OOPSLA 2014, with the constants of Stafford's mix 13). It is integer arithmetic only, so CPU and
CUDA agree bit by bit, and it needs no state: there is no generator to advance, so nothing to keep in step.
"""

from __future__ import annotations

import torch

_BITS64 = (1 << 64) - 1
_WEYL = 0x9E3779B97F4A7C15
_MULTIPLY_1 = 0xBF58476D1CE4E5B9
_MULTIPLY_2 = 0x94D049BB133111EB
_UNIFORM_BITS = 52
"""Bits of a uniform: one fewer than a float64 holds, so that adding one half is exact and neither 0 nor 1 comes out."""


def _signed(value: int) -> int:
    """Return the int64 with the same 64 bits; torch has no unsigned arithmetic."""
    value &= _BITS64
    return value - (1 << 64) if value >> 63 else value


def _mix_int(z: int) -> int:
    z = ((z ^ (z >> 30)) * _MULTIPLY_1) & _BITS64
    z = ((z ^ (z >> 27)) * _MULTIPLY_2) & _BITS64
    return z ^ (z >> 31)


def noise_key(seed: int, sample_index: int) -> int:
    """Return the noise key of a request, as an int64 (two's complement).

    Args:
        seed: any integer from -2**63 to 2**64 - 1. Negative seeds are not folded onto the large positive ones.
        sample_index: which of several samples of one prompt, at least 0.
    """
    key = _mix_int((seed + _WEYL) & _BITS64)
    key = _mix_int((key + (seed >> 64) * _MULTIPLY_1 + _WEYL) & _BITS64)
    return _signed(_mix_int((key + (sample_index + 1) * _WEYL) & _BITS64))


def _shift_right(z: torch.Tensor, bits: int) -> torch.Tensor:
    """Shift logically: torch's own shift repeats the sign bit."""
    return (z >> bits).bitwise_and_((1 << (64 - bits)) - 1)


def _mix(z: torch.Tensor) -> torch.Tensor:
    """Apply `_mix_int` to int64, in place (products wrap modulo 2**64)."""
    z.bitwise_xor_(_shift_right(z, 30)).mul_(_signed(_MULTIPLY_1))
    z.bitwise_xor_(_shift_right(z, 27)).mul_(_signed(_MULTIPLY_2))
    return z.bitwise_xor_(_shift_right(z, 31))


def random_bits(noise_keys: torch.Tensor, positions: torch.Tensor, width: int, first: int = 0) -> torch.Tensor:
    """Return 64 random bits for each row and vocabulary id.

    Args:
        noise_keys: [R] int64 from `noise_key`.
        positions: [R] int64, position in its request of the token being sampled.
        width: vocabulary size, or how many of its ids are asked for.
        first: the lowest of these.

    Returns:
        [R, width] int64.
    """
    row_keys = _mix(noise_keys + _mix((positions + 1) * _signed(_WEYL)))
    ids = torch.arange(first + 1, first + width + 1, device=noise_keys.device)
    return _mix(row_keys[:, None] + (ids * _signed(_WEYL))[None, :])


def gumbel(
    noise_keys: torch.Tensor, positions: torch.Tensor, width: int, dtype: torch.dtype, first: int = 0
) -> torch.Tensor:
    """Return independent standard Gumbel noise: `argmax(log p + noise)` is a sample of `p`.

    The uniform is taken where it is small as -log1p(-u), which keeps full relative precision for the rare large
    values that decide, even in float32; a plain -log(u) would cut the tail at about 17.

    Args:
        noise_keys, positions, width, first: as for `random_bits`.
        dtype: float32 or float64.

    Returns:
        [R, width] of `dtype`, all finite.
    """
    bits = _shift_right(random_bits(noise_keys, positions, width, first), 64 - _UNIFORM_BITS)
    uniform = bits.to(dtype).add_(0.5).mul_(2.0**-_UNIFORM_BITS)
    exponential = uniform.clamp_(max=1 - torch.finfo(dtype).eps / 2).neg_().log1p_().neg_()
    return exponential.log_().neg_()

"""Unpacks the blocks of a GGUF file's tensors to integers with scales. Types: GGML's, as llama.cpp stores them.

All these types are of one form: groups of integers with a scale each, and perhaps a minimum. What is computed from it
is what llama.cpp computes, bit for bit.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch

Q4_0 = "Q4_0"
LEVELS = (-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113)
"""What the four bits of IQ4_NL and IQ4_XS mean."""
HALVES = (0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12)
"""What the four bits of MXFP4 mean: numbers of one bit of mantissa, doubled."""
SIX = 0x3F


@dataclass(frozen=True, slots=True)
class Unpacked:
    """The values of N blocks: `numbers * scales + minimums`, with a scale and a minimum for each group."""

    numbers: torch.Tensor
    """[N, size] int8"""
    scales: torch.Tensor
    """[N, groups] float32"""
    minimums: torch.Tensor | None = None
    """[N, groups] float32"""

    def dense(self) -> torch.Tensor:
        """Return the values [N, size] float32."""
        grouped = self.numbers.unflatten(1, (self.scales.shape[1], -1)).float()
        grouped *= self.scales[..., None]
        if self.minimums is not None:
            grouped += self.minimums[..., None]
        return grouped.flatten(1)


def _halves(blocks: torch.Tensor, start: int, count: int = 1) -> torch.Tensor:
    """Return `count` numbers of float16, in float32."""
    return blocks[:, start : start + 2 * count].contiguous().view(torch.float16).float()


def _nibbles(packed: torch.Tensor, run: int) -> torch.Tensor:
    """Return two numbers of four bits for each byte: of each `run` bytes, the lower halves before the upper ones."""
    runs = packed.unflatten(1, (-1, run))
    return torch.stack((runs & 15, runs >> 4), dim=2).flatten(1)


def _bits(packed: torch.Tensor, bits: int) -> torch.Tensor:
    """Return the numbers of some bits in runs of 32 bytes: of each run, the lowest bits of all its bytes first."""
    shifts = torch.arange(0, 8, bits, dtype=torch.uint8)[:, None]
    return (packed.unflatten(1, (-1, 1, 32)) >> shifts & (1 << bits) - 1).flatten(1)


def _fifth_bits(packed: torch.Tensor) -> torch.Tensor:
    """Return 16 times bit i of 32 bits, for each i."""
    return (packed[:, :, None] >> torch.arange(8, dtype=torch.uint8) & 1).flatten(1) << 4


def _q4_0(blocks: torch.Tensor) -> Unpacked:
    return Unpacked(_nibbles(blocks[:, 2:], 16).to(torch.int8) - 8, _halves(blocks, 0))


def _q4_1(blocks: torch.Tensor) -> Unpacked:
    return Unpacked(_nibbles(blocks[:, 4:], 16).to(torch.int8), _halves(blocks, 0), _halves(blocks, 2))


def _q5_0(blocks: torch.Tensor) -> Unpacked:
    numbers = _nibbles(blocks[:, 6:], 16) | _fifth_bits(blocks[:, 2:6])
    return Unpacked(numbers.to(torch.int8) - 16, _halves(blocks, 0))


def _q5_1(blocks: torch.Tensor) -> Unpacked:
    numbers = _nibbles(blocks[:, 8:], 16) | _fifth_bits(blocks[:, 4:8])
    return Unpacked(numbers.to(torch.int8), _halves(blocks, 0), _halves(blocks, 2))


def _q8_0(blocks: torch.Tensor) -> Unpacked:
    return Unpacked(blocks[:, 2:].contiguous().view(torch.int8), _halves(blocks, 0))


def _q2_k(blocks: torch.Tensor) -> Unpacked:
    codes, numbers = blocks[:, :16], _bits(blocks[:, 16:80], 2)
    minimums = -(_halves(blocks, 82) * (codes >> 4).float())
    return Unpacked(numbers.to(torch.int8), _halves(blocks, 80) * (codes & 15).float(), minimums)


def _q3_k(blocks: torch.Tensor) -> Unpacked:
    high, codes = _bits(blocks[:, :32], 1), blocks[:, 96:108]
    numbers = _bits(blocks[:, 32:96], 2) | high << 2
    low = torch.cat((codes[:, :8] & 15, codes[:, :8] >> 4), dim=1)
    shifts = torch.arange(0, 8, 2, dtype=torch.uint8)[:, None]
    scales = low | (codes[:, None, 8:] >> shifts & 3).flatten(1) << 4
    return Unpacked(numbers.to(torch.int8) - 4, _halves(blocks, 108) * (scales.to(torch.int8) - 32).float())


def _scales_and_minimums(blocks: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return those of Q4_K and Q5_K, which have six bits each in bytes 4 to 16."""
    first, second, rest = blocks[:, 4:8], blocks[:, 8:12], blocks[:, 12:16]
    scales = torch.cat((first & SIX, rest & 15 | first >> 6 << 4), dim=1)
    minimums = torch.cat((second & SIX, rest >> 4 | second >> 6 << 4), dim=1)
    return _halves(blocks, 0) * scales.float(), -(_halves(blocks, 2) * minimums.float())


def _q4_k(blocks: torch.Tensor) -> Unpacked:
    return Unpacked(_nibbles(blocks[:, 16:], 32).to(torch.int8), *_scales_and_minimums(blocks))


def _q5_k(blocks: torch.Tensor) -> Unpacked:
    numbers = _nibbles(blocks[:, 48:], 32) | _bits(blocks[:, 16:48], 1) << 4
    return Unpacked(numbers.to(torch.int8), *_scales_and_minimums(blocks))


def _q6_k(blocks: torch.Tensor) -> Unpacked:
    numbers = _nibbles(blocks[:, :128], 64) | _bits(blocks[:, 128:192], 2) << 4
    scales = blocks[:, 192:208].contiguous().view(torch.int8)
    return Unpacked(numbers.to(torch.int8) - 32, _halves(blocks, 208) * scales.float())


def _named(nibbles: torch.Tensor, values: tuple[int, ...]) -> torch.Tensor:
    """Return the values that numbers of four bits stand for."""
    return torch.tensor(values, dtype=torch.int8)[nibbles.int()]


def _iq4_nl(blocks: torch.Tensor) -> Unpacked:
    return Unpacked(_named(_nibbles(blocks[:, 2:], 16), LEVELS), _halves(blocks, 0))


def _iq4_xs(blocks: torch.Tensor) -> Unpacked:
    low = _nibbles(blocks[:, 4:8], 1)
    high = (blocks[:, 2:4, None] >> torch.arange(0, 8, 2, dtype=torch.uint8) & 3).flatten(1)
    scales = _halves(blocks, 0) * ((low | high << 4).to(torch.int8) - 32).float()
    return Unpacked(_named(_nibbles(blocks[:, 8:], 16), LEVELS), scales)


def _mxfp4(blocks: torch.Tensor) -> Unpacked:
    """Scales are powers of two, 2 ** (e - 128), and subnormal numbers for e of 0 and 1."""
    exponents = blocks[:, :1].int()
    bits = torch.where(exponents < 2, 0x00200000 << exponents.clamp(max=1), exponents - 1 << 23)
    return Unpacked(_named(_nibbles(blocks[:, 1:], 16), HALVES), bits.view(torch.float32))


UNPACK: Mapping[str, Callable[[torch.Tensor], Unpacked]] = {
    Q4_0: _q4_0,
    "Q4_1": _q4_1,
    "Q5_0": _q5_0,
    "Q5_1": _q5_1,
    "Q8_0": _q8_0,
    "Q2_K": _q2_k,
    "Q3_K": _q3_k,
    "Q4_K": _q4_k,
    "Q5_K": _q5_k,
    "Q6_K": _q6_k,
    "IQ4_NL": _iq4_nl,
    "IQ4_XS": _iq4_xs,
    "MXFP4": _mxfp4,
}
"""Type -> what unpacks N of its blocks [N, bytes] uint8."""

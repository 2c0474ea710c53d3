"""Small integers in 32-bit words, as GPTQ and AWQ store them."""

from __future__ import annotations

import torch

WORD = 32
"""Bits of a word."""


def pairs(numbers: torch.Tensor) -> torch.Tensor:
    """Return numbers of four bits [N, size] uint8 in bytes [N, size / 2], the even ones in the lower half."""
    return numbers[:, ::2] | numbers[:, 1::2] << 4


def unpacked(words: torch.Tensor, bits: int) -> torch.Tensor:
    """Return the integers [..., words * 32 / bits] int32 of words [..., words] int32; the lowest bits come first."""
    shifts = torch.arange(0, WORD, bits, dtype=torch.int32)
    return ((words[..., None] >> shifts) & ((1 << bits) - 1)).flatten(-2)

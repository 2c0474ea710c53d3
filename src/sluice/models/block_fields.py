"""Reads the fields that blocks of GGUF files consist of. Blocks are [N, size] uint8."""

from __future__ import annotations

import torch

SIGNED_ZERO = 128
"""Added to numbers with a sign."""
MXFP4_VALUES = (0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12)
"""What four bits of MXFP4 and NVFP4 stand for: twice the numbers of e2m1."""

Parts = tuple[torch.Tensor, torch.Tensor, torch.Tensor | None]
"""Numbers [N, inputs] uint8, scales [N, groups] float32, and minimums as the scales, or None."""


def half(blocks: torch.Tensor, at: int) -> torch.Tensor:
    """Return the float16 at a byte, [N, 1] float32."""
    return blocks[:, at : at + 2].contiguous().view(torch.float16).float()


def nibbles(stored: torch.Tensor, size: int) -> torch.Tensor:
    """Return the numbers of runs of `size` bytes: first the lower halves of a run, then the upper ones."""
    runs = stored.unflatten(1, (-1, size))
    return torch.cat((runs & 15, runs >> 4), dim=2).flatten(1)


def fields(stored: torch.Tensor, bits: int, count: int) -> torch.Tensor:
    """Return the lowest `count` fields of some bits of each number [N, size], the lowest first: [N, count * size]."""
    shifts = torch.arange(0, bits * count, bits, dtype=stored.dtype)
    return ((stored[..., None] >> shifts) & ((1 << bits) - 1)).flatten(1)


def planes(stored: torch.Tensor, bits: int) -> torch.Tensor:
    """Return numbers of some bits in runs of 32 bytes: of each run, the lowest bits of all its bytes first."""
    shifts = torch.arange(0, 8, bits, dtype=torch.uint8)[:, None]
    return ((stored.unflatten(1, (-1, 1, 32)) >> shifts) & ((1 << bits) - 1)).flatten(1)


def words(stored: torch.Tensor, size: int) -> torch.Tensor:
    """Return the little-endian numbers of `size` bytes, [N, numbers] int64."""
    shifts = torch.arange(0, 8 * size, 8)
    return (stored.unflatten(1, (-1, size)).long() << shifts).sum(2)


def looked_up(numbers: torch.Tensor, values: tuple[int, ...]) -> torch.Tensor:
    """Return what numbers stand for in a table of values with a sign."""
    table = torch.tensor([value + SIGNED_ZERO for value in values], dtype=torch.uint8)
    return table[numbers.int()]

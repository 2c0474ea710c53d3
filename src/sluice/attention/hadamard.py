"""The rotation of queries and keys beside pages of int8.

Keys of some models have a few channels that are far larger than the others: those with a large bias (Qwen2), or with
a large weight of a norm. They set the scale, and the other channels lose their last bits. The product of a query and a
key does not change if both are rotated, and a Hadamard matrix spreads each channel evenly over all of them (QuaRot:
Ashkboos et al., 2024). Its entries are 1 and -1, and it is applied in log2(size) passes of sums and differences.

Channels that are alike would be gathered into one by it. So the signs of some are changed first, by a bent function
(Rothaus, 1976), from which all rows of the matrix differ equally.
"""

from __future__ import annotations

import torch

PAIRS = 0x155
"""Bits of a channel's number that are multiplied with the next higher ones."""


def rotated(x: torch.Tensor) -> torch.Tensor:
    """Rotate heads x [..., head_dim] float32, and multiply their length by the root of the block's size.

    Blocks of the largest power of two that divides the size are rotated, each by itself.
    """
    return _sums_and_differences(x * _signs(x))


def rotated_back(x: torch.Tensor) -> torch.Tensor:
    """Return what was rotated to x [..., head_dim] float32, divided by the block's size: `rotated` need not do that."""
    return _sums_and_differences(x) * (_signs(x) / block_of(x.shape[-1]))


def block_of(size: int) -> int:
    """Return how many neighbouring elements of a head of `size` are rotated together."""
    return size & -size


def _sums_and_differences(x: torch.Tensor) -> torch.Tensor:
    """Replace elements by the sum and the difference of pairs, first of those that are farthest apart in a block."""
    stride = block_of(x.shape[-1]) // 2
    while stride:
        first, second = x.unflatten(-1, (-1, 2, stride)).unbind(-2)
        x = torch.stack((first + second, first - second), -2).flatten(-3)
        stride //= 2
    return x


def _signs(x: torch.Tensor) -> torch.Tensor:
    """Return a factor of 1 or -1 for each element of a head."""
    size = x.shape[-1]
    block = block_of(size)
    signs = [(-1.0) ** (i & i >> 1 & PAIRS).bit_count() for i in range(block)]
    return torch.tensor(signs * (size // block), dtype=x.dtype, device=x.device)

"""Rows of activations in e4m3, each with a scale of its own: the left side of products in FP8 (W8A8 dynamic)."""

from __future__ import annotations

from typing import NamedTuple

import torch

LARGEST = 448.0
"""The largest number of e4m3."""
SMALLEST_MAXIMUM = 1e-30
"""A row of values below it is zero: the inverse of its scale would not be finite."""


class Fp8Rows(NamedTuple):
    """Quantised rows: `values * scales[:, None]`."""

    values: torch.Tensor
    """[N, size] float8_e4m3fn"""
    scales: torch.Tensor
    """[N] float32"""
    dtype: torch.dtype
    """Dtype of the rows before they were quantised, and of products with them."""


Rows = torch.Tensor | Fp8Rows
"""Inputs [N, size] of a linear layer."""


def fp8_rows(x: torch.Tensor) -> Fp8Rows:
    """Quantise rows x [N, size] by their largest magnitudes: the definition that fused kernels follow.

    A row with an infinite value or no number has no finite scale, or values that are no numbers.
    """
    wide = x.float()
    largest = wide.abs().amax(1)
    is_zero = largest < SMALLEST_MAXIMUM
    # A tensor over a tensor: torch multiplies a number with the reciprocal, which rounds twice.
    inverse = torch.where(is_zero, 0.0, largest.new_tensor(LARGEST) / largest)
    scales = torch.where(is_zero, 0.0, largest / largest.new_tensor(LARGEST))
    return Fp8Rows((wide * inverse[:, None]).to(torch.float8_e4m3fn), scales, x.dtype)


def plain(rows: Rows) -> torch.Tensor:
    """Return rows that are not quantised."""
    assert isinstance(rows, torch.Tensor), "these rows are quantised"
    return rows

"""The definition of products with weights in groups, which the compiled kernels follow.

The activations of a row are quantised to int8 in runs of 32 neighbouring inputs, each with a scale of its own. One
scale for a longer run is coarser: a single outlier sets it, and the other values lose their last bits.

Nearly all that rounding then costs comes from the runs with the largest values. So the largest activations of a row,
its outliers, are not quantised but multiplied as they are (as in LLM.int8(): Dettmers et al., 2022). They are few, and
the scale of a run is that of the others.
"""

from __future__ import annotations

from typing import NamedTuple

import torch

from sluice.models.group_weight import GroupWeight
from sluice.models.quantized import quantize_rows

RUN = 32
"""Neighbouring inputs with one scale."""


def grouped_linear(x: torch.Tensor, weight: GroupWeight, bias: torch.Tensor | None, run: int = RUN) -> torch.Tensor:
    """Multiply x [N, in_features] with a weight in groups.

    The sums of a group are of integers and exact. Scaled, they are added within a run, and the runs then by their
    scales, in order and each with one rounding to float32. Outliers are multiplied with the weights that the integers
    stand for, in float32, and are added in their order, each with one rounding. Both sums are added.

    Args:
        run: neighbouring inputs with one scale, a multiple of the weight's groups. The kernels have `RUN`.

    Returns:
        [N, out_features] in x's dtype.
    """
    rows = quantize_runs(x, run)
    y = _products(rows, weight) + _outlier_products(x.float(), rows.is_outlier, weight)
    return (y if bias is None else y + bias.float()).to(x.dtype)


def _products(rows: Runs, weight: GroupWeight) -> torch.Tensor:
    """Return the products [N, out_features] float32 of quantised rows."""
    values, numbers = rows.values.double().view(len(rows.values), -1, weight.group), weight.signed().double()
    in_run = values.shape[1] // rows.scales.shape[1]
    y = torch.zeros((len(values), weight.out_features), dtype=torch.float32)
    for run in range(rows.scales.shape[1]):
        total = torch.zeros_like(y)
        for group in range(run * in_run, (run + 1) * in_run):
            total = _fused(values[:, group] @ numbers[:, group].T, weight.scales[:, group], total)
            if weight.minimums is not None:
                total = _fused(values[:, group].sum(1, keepdim=True), weight.minimums[:, group], total)
        y = _fused(total, rows.scales[:, run, None], y)
    return y


def _outlier_products(x: torch.Tensor, is_outlier: torch.Tensor, weight: GroupWeight) -> torch.Tensor:
    """Return the products [N, out_features] float32 of the outliers of rows x [N, in_features]."""
    dense = weight.dense(torch.float32)
    y = torch.zeros((len(x), weight.out_features), dtype=torch.float32)
    for number in is_outlier.any(0).nonzero()[:, 0].tolist():
        added = _fused(x[:, number, None], dense[:, number], y)
        y = torch.where(is_outlier[:, number, None], added, y)
    return y


class Runs(NamedTuple):
    """Rows that are quantised in runs, but for their outliers."""

    values: torch.Tensor
    """[N, size] int8 from -127 to 127, and 0 for an outlier."""
    scales: torch.Tensor
    """[N, runs] float32"""
    is_outlier: torch.Tensor
    """[N, size] bool"""


def quantize_runs(x: torch.Tensor, run: int = RUN) -> Runs:
    """Quantise rows x [N, size] in runs.

    An outlier's magnitude is above the mean of the largest magnitudes of the row's runs.
    """
    runs = x.reshape(len(x), -1, run).float()
    largest = runs.abs().amax(2).double()
    total = torch.zeros(len(x), dtype=torch.float64)
    for number in range(largest.shape[1]):
        total += largest[:, number]
    is_outlier = runs.abs().double() * largest.shape[1] > total[:, None, None]
    values, scales = quantize_rows(runs.masked_fill(is_outlier, 0.0).view(-1, run))
    return Runs(values.view(len(x), -1), scales.view(len(x), -1), is_outlier.view(len(x), -1))


def _fused(a: torch.Tensor, b: torch.Tensor, c: torch.Tensor) -> torch.Tensor:
    """Return `a * b + c` with one rounding to float32: products of float32 numbers are exact in float64."""
    return (a.double() * b + c).float()

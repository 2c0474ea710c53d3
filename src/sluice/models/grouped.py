"""The definition of products with weights in groups, which the compiled kernels follow.

The activations of a row are quantised to int8 in runs of 32 neighbouring inputs, each with a scale of its own. One
scale for a longer run is coarser: a single outlier sets it, and the other values lose their last bits.

Nearly all that rounding then costs comes from the runs with the largest values. So these are quantised twice: what
rounding took from them, their rest, is quantised to int8 too. The other runs have a rest of zero.
"""

from __future__ import annotations

from typing import NamedTuple

import torch

from sluice.models.group_weight import GroupWeight
from sluice.models.quantized import quantize_rows

RUN = 32
"""Neighbouring inputs with one scale."""
REST_UNIT = 1 / 254
"""Unit of a rest, in scales of its run: rounding takes at most half of the scale, 127 of these units."""


def grouped_linear(x: torch.Tensor, weight: GroupWeight, bias: torch.Tensor | None, run: int = RUN) -> torch.Tensor:
    """Multiply x [N, in_features] with a weight in groups.

    The sums of a group are of integers and exact. Scaled, they are added within a run, and the runs then by their
    scales, in order and each with one rounding to float32. The same is done with the rests, and both sums are added.

    Args:
        run: neighbouring inputs with one scale, a multiple of the weight's groups. The kernels have `RUN`.

    Returns:
        [N, out_features] in x's dtype.
    """
    rows = quantize_runs(x, run)
    unit = torch.tensor(REST_UNIT, dtype=torch.float32)
    y = _products(rows.values, rows.scales, weight)
    y += _products(rows.rests, rows.scales * unit, weight, rows.has_rest)
    return (y if bias is None else y + bias.float()).to(x.dtype)


def _products(
    values: torch.Tensor, scales: torch.Tensor, weight: GroupWeight, chosen: torch.Tensor | None = None
) -> torch.Tensor:
    """Return the products [N, out_features] float32 of quantised rows.

    Args:
        chosen: [N, runs] whether a run is added; None: all are.
    """
    rows, numbers = values.double().view(len(values), -1, weight.group), weight.signed().double()
    in_run = rows.shape[1] // scales.shape[1]
    y = torch.zeros((len(values), weight.out_features), dtype=torch.float32)
    for run in range(scales.shape[1]):
        total = torch.zeros_like(y)
        for group in range(run * in_run, (run + 1) * in_run):
            total = _fused(rows[:, group] @ numbers[:, group].T, weight.scales[:, group], total)
            if weight.minimums is not None:
                total = _fused(rows[:, group].sum(1, keepdim=True), weight.minimums[:, group], total)
        added = _fused(total, scales[:, run, None], y)
        y = added if chosen is None else torch.where(chosen[:, run, None], added, y)
    return y


class Runs(NamedTuple):
    """Rows that are quantised in runs: `scales * (values + rests * REST_UNIT)`."""

    values: torch.Tensor
    """[N, size] int8 from -127 to 127."""
    rests: torch.Tensor
    """[N, size] int8; zeros where there is none."""
    scales: torch.Tensor
    """[N, runs] float32"""
    has_rest: torch.Tensor
    """[N, runs] bool"""


def quantize_runs(x: torch.Tensor, run: int = RUN) -> Runs:
    """Quantise rows x [N, size] in runs.

    A run has a rest if its largest magnitude is above the root mean square of the largest magnitudes of the row's runs.
    """
    runs = x.reshape(-1, run).float()
    values, scales = quantize_rows(runs)
    squares = runs.abs().amax(1).double().square().view(len(x), -1)
    total = torch.zeros(len(x), dtype=torch.float64)
    for number in range(squares.shape[1]):
        total += squares[:, number]
    has_rest = (squares * squares.shape[1] > total[:, None]).view(-1, 1) & (scales > 0)[:, None]
    left = (runs.double() - values.double() * scales[:, None]).float()
    rests = torch.where(has_rest, (left * (254 / scales)[:, None]).round_(), 0.0).to(torch.int8)
    of_rows = (each.view(len(x), -1) for each in (values, rests, scales, has_rest))
    return Runs(*of_rows)


def _fused(a: torch.Tensor, b: torch.Tensor, c: torch.Tensor) -> torch.Tensor:
    """Return `a * b + c` with one rounding to float32: products of float32 numbers are exact in float64."""
    return (a.double() * b + c).float()

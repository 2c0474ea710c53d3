"""The definition of products with weights in groups, which the compiled kernels follow.

The activations of a row are quantised to int8 in runs of 32 neighbouring inputs, each with a scale of its own. One
scale for a longer run is coarser: a single outlier sets it, and the other values lose their last bits.
"""

from __future__ import annotations

import torch

from sluice.models.group_weight import GroupWeight
from sluice.models.quantized import quantize_rows

RUN = 32
"""Neighbouring inputs with one scale."""


def grouped_linear(x: torch.Tensor, weight: GroupWeight, bias: torch.Tensor | None, run: int = RUN) -> torch.Tensor:
    """Multiply x [N, in_features] with a weight in groups.

    The sums of a group are of integers and exact. Scaled, they are added within a run, and the runs then by their
    scales, in order and each with one rounding to float32.

    Args:
        run: neighbouring inputs with one scale, a multiple of the weight's groups. The kernels have `RUN`.

    Returns:
        [N, out_features] in x's dtype.
    """
    values, scales = quantize_rows(x.reshape(-1, run))
    rows = values.double().view(len(x), -1, weight.group)
    of_runs, numbers = scales.view(len(x), -1), weight.signed().double()
    in_run = run // weight.group
    y = torch.zeros((len(x), weight.out_features), dtype=torch.float32)
    for number in range(of_runs.shape[1]):
        total = torch.zeros_like(y)
        for group in range(number * in_run, (number + 1) * in_run):
            sums = rows[:, group] @ numbers[:, group].T
            total = _fused(sums, weight.scales[:, group], total)
            if weight.minimums is not None:
                total = _fused(rows[:, group].sum(1, keepdim=True), weight.minimums[:, group], total)
        y = _fused(total.double(), of_runs[:, number, None], y)
    return (y if bias is None else y + bias.float()).to(x.dtype)


def _fused(a: torch.Tensor, b: torch.Tensor, c: torch.Tensor) -> torch.Tensor:
    """Return `a * b + c` with one rounding to float32: products of float32 numbers are exact in float64."""
    return (a.double() * b + c).float()

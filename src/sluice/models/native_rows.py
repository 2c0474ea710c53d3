"""Calls of the compiled kernels for the rows of a step."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import torch

from sluice.kernels.cpu.abi import ExpertsCall, GroupedLinearCall, PackedLinearCall

RowsCall = TypeVar("RowsCall", PackedLinearCall, GroupedLinearCall, ExpertsCall)


def run_rows(kernel: Callable[[RowsCall], None], call: RowsCall, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """Compute outputs y [N, out] of rows x [N, in] by a call that holds all else; returns y. The rows of x may be
    strided."""
    if x.stride(1) != 1:
        x = x.contiguous()
    call.x, call.x_stride, call.rows, call.y = x.data_ptr(), x.stride(0), x.shape[0], y.data_ptr()
    kernel(call)
    return y

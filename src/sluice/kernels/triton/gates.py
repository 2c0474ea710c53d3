"""Computes `activation(gate) * up`, element by element."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import torch
import triton
import triton.language as tl

from sluice.kernels.triton.rounding import narrowed, to_fp8, to_type

_SILU: tl.constexpr = tl.constexpr(0)
_GELU: tl.constexpr = tl.constexpr(1)
_GELU_TANH: tl.constexpr = tl.constexpr(2)
_RELU: tl.constexpr = tl.constexpr(3)
CODES: Final[Mapping[str, int]] = {
    "silu": 0,
    "swish": 0,
    "gelu": 1,
    "gelu_new": 2,
    "gelu_pytorch_tanh": 2,
    "relu": 3,
}
"""Codes of activations by their names in checkpoints."""
BLOCK = 1024


@triton.jit
def _activated(x, CODE: tl.constexpr):
    if CODE == _SILU:
        return x / (1.0 + tl.exp(-x))
    if CODE == _GELU:
        return 0.5 * x * (1.0 + tl.erf(x * 0.7071067811865476))
    if CODE == _GELU_TANH:
        inner = 0.7978845608028654 * (x + 0.044715 * x * x * x)
        return x / (1.0 + tl.exp(-2.0 * inner))  # x (1 + tanh(inner)) / 2
    return tl.maximum(x, 0.0, propagate_nan=tl.PropagateNan.ALL)


@triton.jit
def _gate_rows(gate_ptr, up_ptr, out_ptr, gate_stride, up_stride, size, CODE: tl.constexpr, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = column < size
    dtype: tl.constexpr = out_ptr.dtype.element_ty
    gate = tl.load(gate_ptr + row * gate_stride + column, mask=inside, other=0.0).to(tl.float32)
    up = tl.load(up_ptr + row * up_stride + column, mask=inside, other=0.0).to(tl.float32)
    out = narrowed(_activated(gate, CODE), dtype) * up
    tl.store(out_ptr + row * size + column, to_type(out, dtype), mask=inside)


@triton.jit
def _gate_rows_to_fp8(
    gate_ptr, up_ptr, out_ptr, scale_ptr, gate_stride, up_stride, size, CODE: tl.constexpr, BLOCK: tl.constexpr
):
    row = tl.program_id(0).to(tl.int64)
    column = tl.arange(0, BLOCK)
    inside = column < size
    dtype: tl.constexpr = gate_ptr.dtype.element_ty
    gate = tl.load(gate_ptr + row * gate_stride + column, mask=inside, other=0.0).to(tl.float32)
    up = tl.load(up_ptr + row * up_stride + column, mask=inside, other=0.0).to(tl.float32)
    values, scale = to_fp8(narrowed(narrowed(_activated(gate, CODE), dtype) * up, dtype))
    tl.store(out_ptr + row * size + column, values, mask=inside)
    tl.store(scale_ptr + row, scale)


def gate_rows(gate: torch.Tensor, up: torch.Tensor, activation: str) -> torch.Tensor:
    """Return `activation(gate) * up` as a new tensor.

    Args:
        gate, up: [N, size] without gaps inside a row; float32, bfloat16 or float16.
        activation: a key of `CODES`.
    """
    rows, size = gate.shape
    out = torch.empty((rows, size), dtype=gate.dtype, device=gate.device)
    if rows:
        grid = (rows, triton.cdiv(size, BLOCK))
        _gate_rows[grid](
            gate, up, out, gate.stride(0), up.stride(0), size, CODE=CODES[activation], BLOCK=BLOCK, num_warps=4
        )
    return out


def gate_rows_to_fp8(gate: torch.Tensor, up: torch.Tensor, activation: str) -> tuple[torch.Tensor, torch.Tensor]:
    """Return `activation(gate) * up` in e4m3 [N, size], and the scale of each row [N] float32.

    Args:
        gate, up: as of `gate_rows`; `size` at most `norms.MAX_SIZE`, since a row is kept in registers.
        activation: a key of `CODES`.
    """
    rows, size = gate.shape
    out = torch.empty((rows, size), dtype=torch.float8_e4m3fn, device=gate.device)
    scales = torch.empty(rows, dtype=torch.float32, device=gate.device)
    if rows:
        block = triton.next_power_of_2(size)
        _gate_rows_to_fp8[(rows,)](
            gate,
            up,
            out,
            scales,
            gate.stride(0),
            up.stride(0),
            size,
            CODE=CODES[activation],
            BLOCK=block,
            num_warps=min(max(block // 512, 1), 16),
        )
    return out, scales

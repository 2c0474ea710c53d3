"""Multiplies rows with the weights of the experts that they chose, all experts in one launch.

Pairs of a row and an expert are sorted by the expert. A program computes a block of an expert's pairs: the last block
of an expert is filled up, so that none has the pairs of two. How many blocks there are is not known on the host, so as
many programs run as could be needed, and the others end at once.

Sums are float32, in the order of the inputs. What a row's experts give is added in the order of its choices. So a row's
result depends on no other row.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
import triton
import triton.language as tl

from sluice.kernels.triton.rounding import IS_INTERPRETED, to_type

HEIGHT = 16
"""Pairs of a block, for any number of rows: another size might sum in another order."""
OUTPUTS, INPUTS = 64, 64
"""Outputs and inputs of a tile."""
BLOCK = 1024


class Pairs(NamedTuple):
    """Pairs of a row and one of its experts, sorted by the expert and then by the row."""

    order: torch.Tensor
    """[pairs] int64, the number of each: `choices * row + choice`."""
    places: torch.Tensor
    """[pairs] int64, where each number is."""
    starts: torch.Tensor
    """[experts + 1] int64, of each expert's pairs."""
    ends: torch.Tensor
    """[experts] int64, of each expert's blocks."""
    choices: int


def sort_pairs(ids: torch.Tensor, experts: int) -> Pairs:
    """Sort pairs, without waiting for the device.

    Args:
        ids: [rows, choices] int64, from 0 to `experts` - 1.
    """
    chosen, order = ids.flatten().sort(stable=True)
    places = torch.empty_like(order).scatter_(0, order, torch.arange(len(order), device=ids.device))
    starts = torch.searchsorted(chosen, torch.arange(experts + 1, device=ids.device))
    ends = ((starts.diff() + (HEIGHT - 1)) // HEIGHT).cumsum(0)
    return Pairs(order, places, starts, ends, ids.shape[1])


class ExpertWeights(NamedTuple):
    """Where the weights of experts are. They have one shape and dtype."""

    addresses: torch.Tensor
    """[experts] int64"""
    bias_addresses: torch.Tensor | None
    """[experts] int64"""
    outputs: int
    is_aligned: bool
    """All addresses of weights are multiples of 16."""

    @classmethod
    def of(cls, weights: Sequence[torch.Tensor], biases: Sequence[torch.Tensor]) -> ExpertWeights:
        """Note the addresses of weights [outputs, inputs] without gaps, and of biases [outputs], if there are any.

        The caller keeps both alive.
        """
        addresses, bias_addresses = (
            torch.tensor([each.data_ptr() for each in some], device=weights[0].device) for some in (weights, biases)
        )
        is_aligned = all(each.data_ptr() % 16 == 0 for each in weights)
        return cls(addresses, bias_addresses if biases else None, weights[0].shape[0], is_aligned)


@triton.jit
def _expert_linear(
    x_ptr,
    addresses_ptr,
    bias_addresses_ptr,
    order_ptr,
    starts_ptr,
    ends_ptr,
    out_ptr,
    x_stride,
    inputs,
    outputs,
    experts,
    CHOICES: tl.constexpr,
    EXPERTS: tl.constexpr,
    HAS_BIAS: tl.constexpr,
    IS_ALIGNED: tl.constexpr,
    HEIGHT: tl.constexpr,
    OUTPUTS: tl.constexpr,
    INPUTS: tl.constexpr,
):
    block = tl.program_id(1)
    number = tl.arange(0, EXPERTS)
    ends = tl.load(ends_ptr + number, mask=number < experts, other=9223372036854775807)
    expert = tl.sum((ends <= block).to(tl.int32), 0)
    if expert >= experts:
        return
    first_block = tl.load(ends_ptr + expert - 1, mask=expert > 0, other=0)
    place = tl.load(starts_ptr + expert) + (block - first_block) * HEIGHT + tl.arange(0, HEIGHT)
    is_row = place < tl.load(starts_ptr + expert + 1)
    # Each row of x serves so many pairs; of 0, x has a row for each pair, in their order.
    row = place if CHOICES == 0 else tl.load(order_ptr + place, mask=is_row, other=0) // max(CHOICES, 1)
    dtype: tl.constexpr = x_ptr.dtype.element_ty
    weight_ptr = tl.load(addresses_ptr + expert).to(tl.pointer_type(dtype))
    if IS_ALIGNED:  # then several numbers are read at once
        weight_ptr = tl.multiple_of(weight_ptr, 16)
    output = tl.program_id(0) * OUTPUTS + tl.arange(0, OUTPUTS)
    is_output = output < outputs
    sums = tl.zeros((HEIGHT, OUTPUTS), dtype=tl.float32)
    for first in range(0, inputs, INPUTS):
        column = first + tl.arange(0, INPUTS)
        is_column = (column < inputs)[None]
        x = tl.load(x_ptr + row[:, None] * x_stride + column[None], mask=is_row[:, None] & is_column, other=0.0)
        at = output.to(tl.int64)[:, None] * inputs + column[None]
        right = tl.trans(tl.load(weight_ptr + at, mask=is_output[:, None] & is_column, other=0.0))
        if IS_INTERPRETED:  # it would multiply the bit patterns of bfloat16
            x, right = x.to(tl.float32), right.to(tl.float32)
        sums = tl.dot(x, right, sums)
    if HAS_BIAS:
        bias_ptr = tl.load(bias_addresses_ptr + expert).to(tl.pointer_type(dtype))
        sums += tl.load(bias_ptr + output, mask=is_output, other=0.0).to(tl.float32)[None]
    to = out_ptr + place[:, None] * outputs + output[None]
    tl.store(to, to_type(sums, dtype), mask=is_row[:, None] & is_output[None])


@triton.jit
def _weighted_sums(found_ptr, places_ptr, weights_ptr, out_ptr, size, CHOICES: tl.constexpr, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = column < size
    total = tl.zeros((BLOCK,), dtype=tl.float32)
    for choice in range(CHOICES):
        place = tl.load(places_ptr + row * CHOICES + choice)
        weight = tl.load(weights_ptr + row * CHOICES + choice)
        total += tl.load(found_ptr + place * size + column, mask=inside, other=0.0).to(tl.float32) * weight
    tl.store(out_ptr + row * size + column, to_type(total, out_ptr.dtype.element_ty), mask=inside)


def expert_linear(x: torch.Tensor, weights: ExpertWeights, pairs: Pairs, *, is_sorted: bool) -> torch.Tensor:
    """Return the product of each pair's row with its expert's weight, in the order of the pairs, [pairs, outputs].

    Args:
        x: bfloat16 or float16, without gaps inside a row: [rows, inputs], or if sorted [pairs, inputs], a row for each
            pair in their order.
    """
    count, experts = len(pairs.order), len(pairs.ends)
    out = torch.empty((count, weights.outputs), dtype=x.dtype, device=x.device)
    if count == 0:
        return out
    blocks = min(count, experts) + count // HEIGHT  # at least as many as there are
    _expert_linear[(triton.cdiv(weights.outputs, OUTPUTS), blocks)](
        x,
        weights.addresses,
        weights.addresses if weights.bias_addresses is None else weights.bias_addresses,
        pairs.order,
        pairs.starts,
        pairs.ends,
        out,
        x.stride(0),
        x.shape[1],
        weights.outputs,
        experts,
        CHOICES=0 if is_sorted else pairs.choices,
        EXPERTS=triton.next_power_of_2(experts),
        HAS_BIAS=weights.bias_addresses is not None,
        IS_ALIGNED=weights.is_aligned,
        HEIGHT=HEIGHT,
        OUTPUTS=OUTPUTS,
        INPUTS=INPUTS,
        num_warps=4,
        num_stages=4,
    )
    return out


def weighted_sums(found: torch.Tensor, pairs: Pairs, weights: torch.Tensor) -> torch.Tensor:
    """Return for each row the sum of what its pairs gave, times their weights [rows, choices] float32.

    Products and sums are each rounded to float32, in the order of the choices.

    Args:
        found: [pairs, size], in the order of the pairs.
    """
    rows, size = len(weights), found.shape[1]
    out = torch.empty((rows, size), dtype=found.dtype, device=found.device)
    if rows:
        _weighted_sums[(rows, triton.cdiv(size, BLOCK))](
            found,
            pairs.places,
            weights,
            out,
            size,
            CHOICES=pairs.choices,
            BLOCK=BLOCK,
            num_warps=4,
            enable_fp_fusion=False,
        )
    return out

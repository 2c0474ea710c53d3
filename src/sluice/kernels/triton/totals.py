"""Computes log(sum(exp(logits))) of each row, in one pass over the logits in their own type.

Blocks do not depend on the number of rows, so the total of a row does not depend on the other rows.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

BLOCK = 4096


@triton.jit
def _finite(largest):
    """Return the number to subtract before exp: `largest`, or 0 if that is -inf, which would give NaN."""
    return tl.where(largest == -float("inf"), 0.0, largest)


@triton.jit(do_not_specialize_on_alignment=["largest_ptr", "sum_ptr"])
def _partial(logits_ptr, largest_ptr, sum_ptr, stride, vocab, BLOCK: tl.constexpr):
    row, block = tl.program_id(0).to(tl.int64), tl.program_id(1)
    ids = block * BLOCK + tl.arange(0, BLOCK)
    logits = tl.load(logits_ptr + row * stride + ids, mask=ids < vocab, other=-float("inf")).to(tl.float32)
    largest = tl.max(logits, 0)
    at = row * tl.num_programs(1) + block
    tl.store(largest_ptr + at, largest)
    tl.store(sum_ptr + at, tl.sum(tl.exp(logits - _finite(largest)), 0))


@triton.jit(do_not_specialize_on_alignment=["largest_ptr", "sum_ptr"])
def _combine(largest_ptr, sum_ptr, total_ptr, blocks, BLOCKS: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    block = tl.arange(0, BLOCKS)
    inside = block < blocks
    largest = tl.load(largest_ptr + row * blocks + block, mask=inside, other=-float("inf"))
    sums = tl.load(sum_ptr + row * blocks + block, mask=inside, other=0.0)
    whole = _finite(tl.max(largest, 0))
    total = whole + tl.log(tl.sum(sums * tl.exp(largest - whole), 0))
    tl.store(total_ptr + row, tl.where(tl.abs(total) < float("inf"), total, float("nan")))


def totals(logits: torch.Tensor) -> torch.Tensor:
    """Return the totals [R] float32; NaN for a row with NaN or +inf, or with nothing above -inf.

    Args:
        logits: [R, vocab] float32, bfloat16 or float16, without gaps inside a row.
    """
    rows, vocab = logits.shape
    blocks = triton.cdiv(vocab, BLOCK)
    total = torch.empty(rows, dtype=torch.float32, device=logits.device)
    if rows == 0:
        return total
    largest, sums = torch.empty((2, rows, blocks), dtype=torch.float32, device=logits.device)
    _partial[(rows, blocks)](logits, largest, sums, logits.stride(0), vocab, BLOCK=BLOCK, num_warps=8)
    _combine[(rows,)](largest, sums, total, blocks, BLOCKS=triton.next_power_of_2(blocks), num_warps=1)
    return total

"""Excludes tokens from rows of logits by masks of one bit a token, in place."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

BLOCK = 1024


@triton.jit(do_not_specialize_on_alignment=["rows_ptr", "bits_ptr"])
def _mask(logits_ptr, rows_ptr, bits_ptr, vocab, words, stride, BLOCK: tl.constexpr):
    place = tl.program_id(0).to(tl.int64)
    ids = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = ids < vocab
    word = tl.load(bits_ptr + place * words + ids // 32, mask=inside, other=0)
    is_excluded = ((word >> (ids % 32)) & 1) == 0
    at = logits_ptr + tl.load(rows_ptr + place) * stride + ids
    tl.store(at, float("-inf"), mask=inside & is_excluded)


def mask_rows(logits: torch.Tensor, rows: torch.Tensor, bits: torch.Tensor) -> None:
    """Set the logits of tokens that are not allowed to -inf.

    Args:
        logits: [S, vocab], any float type, tokens of a row side by side.
        rows: [C] int64, the rows to change, each once.
        bits: [C, ceil(vocab / 32)] int32, contiguous: bit `t % 32` of word `t // 32` is set if token `t` is allowed.
    """
    vocab = logits.shape[1]
    assert logits.stride(1) == 1, f"logits of {tuple(logits.shape)} with strides {logits.stride()}"
    if len(rows) == 0:
        return
    grid = (len(rows), triton.cdiv(vocab, BLOCK))
    _mask[grid](logits, rows, bits, vocab, bits.shape[1], logits.stride(0), BLOCK=BLOCK, num_warps=4)

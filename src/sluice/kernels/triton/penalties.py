"""Applies repetition, frequency and presence penalties in place, without scratch memory."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

BLOCK = 1024


@triton.jit(
    do_not_specialize_on_alignment=["rows_ptr", "counted_ptr", "repetition_ptr", "frequency_ptr", "presence_ptr"]
)
def _penalize(
    logits_ptr,
    rows_ptr,
    in_prompt_ptr,
    outputs_ptr,
    counted_ptr,
    repetition_ptr,
    frequency_ptr,
    presence_ptr,
    vocab,
    BLOCK: tl.constexpr,
):
    place = tl.program_id(0).to(tl.int64)
    ids = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = ids < vocab
    counted = tl.load(counted_ptr + place) * vocab + ids
    outputs = tl.load(outputs_ptr + counted, mask=inside, other=0)
    is_known = (tl.load(in_prompt_ptr + counted, mask=inside, other=0) != 0) | (outputs > 0)
    repetition = tl.load(repetition_ptr + place).to(tl.float32)
    frequency = tl.load(frequency_ptr + place).to(tl.float32)
    presence = tl.load(presence_ptr + place).to(tl.float32)
    at = logits_ptr + tl.load(rows_ptr + place) * vocab + ids
    logits = tl.load(at, mask=inside, other=0.0)
    repeated = tl.where(logits > 0, tl.div_rn(logits, repetition), logits * repetition)
    logits = tl.where(is_known, repeated, logits)
    logits = logits - frequency * outputs.to(tl.float32) - presence * (outputs > 0).to(tl.float32)
    tl.store(at, logits, mask=inside)


def penalize(
    logits: torch.Tensor,
    rows: torch.Tensor,
    in_prompt: torch.Tensor,
    outputs: torch.Tensor,
    counted: torch.Tensor,
    repetition: torch.Tensor,
    frequency: torch.Tensor,
    presence: torch.Tensor,
) -> None:
    """Apply penalties to the logits of P rows.

    Args:
        logits: [S, vocab] float32, contiguous.
        rows: [P] int64, the rows to change, each once.
        in_prompt: [C, vocab] bool, contiguous: the token is in the prompt.
        outputs: [C, vocab] int32, contiguous: how often the token was generated.
        counted: [P] int64, the row of `in_prompt` and `outputs` for each.
        repetition, frequency, presence: [P] float64.
    """
    vocab = logits.shape[1]
    assert logits.is_contiguous(), f"logits of {tuple(logits.shape)} with strides {logits.stride()}"
    if len(rows) == 0:
        return
    _penalize[(len(rows), triton.cdiv(vocab, BLOCK))](
        logits,
        rows,
        in_prompt.view(torch.uint8),
        outputs,
        counted,
        repetition,
        frequency,
        presence,
        vocab,
        BLOCK=BLOCK,
        num_warps=4,
    )

"""A first use of FlashInfer, for its compiler's sake."""

from __future__ import annotations

import torch

from sluice.attention.base import ForwardBatch, LayerKV
from sluice.attention.flashinfer.api import FlashInferUnavailable
from sluice.attention.flashinfer.backend import FlashInferAttention


def try_out(
    attention: FlashInferAttention,
    heads: int,
    kv_heads: int,
    head_dim: int,
    page_size: int,
    dtype: torch.dtype,
    device: torch.device,
) -> None:
    """Attend with one query and with two, over a page of ones: the answer is known.

    Raises:
        FlashInferUnavailable: its kernels cannot be compiled or run here, or give something else.
    """
    page = torch.ones((1, page_size, kv_heads, head_dim), dtype=dtype, device=device)
    for q_len in (1, 2):
        q = torch.ones((q_len, heads, head_dim), dtype=dtype, device=device)
        batch = _one_row(q_len, device)
        try:
            attention.plan(batch)
            out, _ = attention.attend(q, LayerKV(page, page), batch, scale=1.0)
            is_right = bool(torch.allclose(out.float(), torch.ones_like(out, dtype=torch.float32), atol=0.05))
        except Exception as error:  # whatever a compiler or a driver may raise
            reason = str(error).strip().partition("\n")[0]
            raise FlashInferUnavailable(f"it does not run on {device}: {type(error).__name__}: {reason}") from error
        if not is_right:
            raise FlashInferUnavailable(f"it computes nonsense on {device}")


def _one_row(q_len: int, device: torch.device) -> ForwardBatch:
    """Two tokens in page 0, of which the last `q_len` are queries."""
    none = torch.empty(0, dtype=torch.int64, device=device)
    return ForwardBatch(
        input_ids=none,
        positions=none,
        kv_slots=none,
        page_table=torch.zeros((1, 1), dtype=torch.int32, device=device),
        q_starts=torch.tensor([0, q_len], dtype=torch.int32, device=device),
        kv_lens=torch.tensor([2], dtype=torch.int32, device=device),
        logit_rows=none,
        q_lens=(q_len,),
        kv_lens_host=(2,),
        num_decodes=1 if q_len == 1 else 0,
    )

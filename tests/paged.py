"""Forward batches and KV pages made by hand, the way a runner would make them from a plan."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

import torch

from sluice.attention.base import ForwardBatch, LayerKV


@dataclass(frozen=True)
class Row:
    """One chunk: `token_ids` from position `start`, in a request whose pages are `pages`."""

    token_ids: Sequence[int]
    start: int
    pages: Sequence[int]
    kv_len: int | None = None
    """Visible tokens, if not all up to the chunk's end (tests of partial attention)."""
    logits: Sequence[int] = (-1,)
    """Which of the chunk's tokens to compute logits for."""


def forward_batch(rows: Sequence[Row], page_size: int) -> ForwardBatch:
    """The tensors of one step, on the default device; rows of one token at the front count as decodes."""
    q_lens = [len(row.token_ids) for row in rows]
    kv_lens = [row.start + len(row.token_ids) if row.kv_len is None else row.kv_len for row in rows]
    num_decodes = next((i for i, length in enumerate(q_lens) if length != 1), len(rows))
    starts = [0, *accumulate(q_lens)]
    positions = [row.start + i for row in rows for i in range(len(row.token_ids))]
    slots = [
        row.pages[p // page_size] * page_size + p % page_size if p // page_size < len(row.pages) else 0
        for row in rows
        for p in range(row.start, row.start + len(row.token_ids))
    ]
    widest = max(len(row.pages) for row in rows)
    return ForwardBatch(
        input_ids=torch.tensor([token for row in rows for token in row.token_ids]),
        positions=torch.tensor(positions),
        kv_slots=torch.tensor(slots),
        page_table=torch.tensor([[*row.pages, *[0] * (widest - len(row.pages))] for row in rows], dtype=torch.int32),
        q_starts=torch.tensor(starts, dtype=torch.int32),
        kv_lens=torch.tensor(kv_lens, dtype=torch.int32),
        logit_rows=torch.tensor(
            [starts[i] + at % q_lens[i] for i, row in enumerate(rows) for at in row.logits],
            dtype=torch.int64,
        ),
        q_lens=tuple(q_lens),
        kv_lens_host=tuple(kv_lens),
        num_decodes=num_decodes,
    )


def empty_kv(pages: int, page_size: int, kv_heads: int, head_dim: int, dtype: torch.dtype) -> LayerKV:
    """Pages on the default device holding NaN, so that reading what was never written shows."""
    shape = (pages, page_size, kv_heads, head_dim)
    return LayerKV(torch.full(shape, torch.nan, dtype=dtype), torch.full(shape, torch.nan, dtype=dtype))

"""Attention of decodes that reads lengths on the device only, so that graphs can hold it; the rest as the reference.

It reads every page of every row: for tests and trial runs of graphs where there is no GPU.
"""

from __future__ import annotations

import torch

from sluice.attention.base import Attention, ForwardBatch, PagedKV
from sluice.attention.reference import ReferenceAttention
from sluice.attention.spec import AttentionSpec


class StaticAttention(Attention):
    """Reads every page of the table, whatever the lengths on the host say."""

    def __init__(self) -> None:
        self._reference = ReferenceAttention()

    def attend(
        self, q: torch.Tensor, kv: PagedKV, batch: ForwardBatch, spec: AttentionSpec, *, need_lse: bool = False
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        if batch.num_decodes < len(batch.q_lens) or spec.softcap is not None or need_lse:
            return self._reference.attend(q, kv, batch, spec, need_lse=need_lse)
        k, v = (pages.flatten(1, 2) for pages in kv.gather(batch.page_table))
        k, v = (each.repeat_interleave(q.shape[1] // kv.kv_heads, dim=2) for each in (k, v))
        positions = torch.arange(k.shape[1], device=q.device)
        seen = positions < batch.kv_lens[:, None]
        if spec.window is not None:
            seen &= positions >= batch.kv_lens[:, None] - spec.window
        scores = (q[:, None] * k).sum(-1) * spec.scale
        weights = scores.masked_fill(~seen[..., None], -torch.inf).softmax(1)
        return (weights[..., None] * v.masked_fill(~seen[..., None, None], 0)).sum(1), None

"""Attention of decodes that reads lengths on the device only, so that graphs can hold it; the rest as the reference.

A fake: it reads every page of every row, and is here for tests and trial runs of graphs where there is no GPU.
"""

from __future__ import annotations

from typing import Any

import torch

from sluice.attention.base import ForwardBatch, PagedKV
from sluice.attention.reference import ReferenceAttention


class StaticAttention:
    """Reads every page of the table, whatever the lengths on the host say."""

    def __init__(self) -> None:
        self._reference = ReferenceAttention()

    def attend(
        self, q: torch.Tensor, kv: PagedKV, batch: ForwardBatch, *, scale: float, **rest: Any
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """See `AttentionBackend.attend`."""
        if batch.num_decodes < len(batch.q_lens) or rest.get("softcap") is not None:
            return self._reference.attend(q, kv, batch, scale=scale, **rest)
        k, v = (pages.flatten(1, 2) for pages in kv.gather(batch.page_table))
        k, v = (each.repeat_interleave(q.shape[1] // kv.kv_heads, dim=2) for each in (k, v))
        places = torch.arange(k.shape[1], device=q.device)
        seen = places < batch.kv_lens[:, None]
        if rest.get("window") is not None:
            seen &= places >= batch.kv_lens[:, None] - rest["window"]
        scores = (q[:, None] * k).sum(-1) * scale
        weights = scores.masked_fill(~seen[..., None], -torch.inf).softmax(1)
        return (weights[..., None] * v.masked_fill(~seen[..., None, None], 0)).sum(1), None

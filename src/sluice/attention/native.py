"""Attention by the compiled kernels: one call for a mixed batch, straight from the pages.

Queries and keys are multiplied in their own dtype and summed in float32, as is everything after; weights are rounded to
the dtype of the values before they are multiplied. What a query comes to depends on its position and keys alone, not on
what else is in the batch, nor on the number of threads: see `native/plan.h`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

import torch

from sluice.attention.base import ForwardBatch, PagedKV
from sluice.attention.packed import PackedKV, dense_heads
from sluice.native.abi import AttentionCall
from sluice.native.library import Kernels

MAX_SCORES = 2**25
"""Pairs of a query and a key, times heads, that one call computes: a tenth of a second or so, a few without AVX2."""


class Part(NamedTuple):
    """What one call computes: the rows from `row` on, or some queries of that row alone."""

    row: int
    rows: int
    start: int
    """The first of its queries, counted from the step's first."""
    q_starts: torch.Tensor
    """[rows + 1] int32, counted from `start`"""
    kv_lens: torch.Tensor
    """[rows] int32, as seen by each row's last query"""


class NativeAttention:
    """The `AttentionBackend` over `PackedKV`.

    Args:
        kernels: compute.
        tick: called after every part of the work that is bounded by `max_scores`: a long layer is not a silent one.
    """

    def __init__(self, kernels: Kernels, tick: Callable[[], None] = lambda: None, max_scores: int = MAX_SCORES) -> None:
        self._kernels = kernels
        self._tick = tick
        self._max_scores = max_scores

    def attend(
        self,
        q: torch.Tensor,
        kv: PagedKV,
        batch: ForwardBatch,
        *,
        scale: float,
        causal: bool = True,
        window: int | None = None,
        softcap: float | None = None,
        k_scale: float | None = None,
        v_scale: float | None = None,
        need_lse: bool = False,
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """See `AttentionBackend.attend`.

        Raises:
            TypeError: the pages are not `PackedKV`, or q is of another dtype than they.
            ValueError: `heads` is no multiple of the KV heads, or `window` is below 1.
        """
        if not isinstance(kv, PackedKV):
            raise TypeError(f"native attention reads PackedKV, got {type(kv).__name__}")
        if q.dtype != kv.k.dtype:
            raise TypeError(f"queries must be {kv.k.dtype} as the pages are, got {q.dtype}")
        tokens, heads, head_dim = q.shape
        if heads % kv.kv_heads:
            raise ValueError(f"query heads must be a multiple of the KV heads, got {heads} and {kv.kv_heads}")
        if window is not None and window < 1:
            raise ValueError(f"window must be at least 1 position, got {window}")
        q = dense_heads(q)
        out = torch.empty((tokens, heads, head_dim), dtype=q.dtype)
        lse = torch.empty((tokens, heads), dtype=torch.float32) if need_lse else None
        for part in self._parts(batch, heads, causal):
            self._kernels.attention(
                AttentionCall(
                    q=_at(q, part.start),
                    out=_at(out, part.start),
                    lse=None if lse is None else _at(lse, part.start),
                    k=kv.k.data_ptr(),
                    v=kv.v.data_ptr(),
                    page_table=_at(batch.page_table, part.row),
                    q_starts=part.q_starts.data_ptr(),
                    kv_lens=part.kv_lens.data_ptr(),
                    q_stride=q.stride(0),
                    table_stride=batch.page_table.stride(0),
                    rows=part.rows,
                    heads=heads,
                    kv_heads=kv.kv_heads,
                    head_dim=head_dim,
                    page_size=kv.page_size,
                    is_bf16=q.dtype == torch.bfloat16,
                    causal=causal,
                    window=window or 0,
                    scale=scale * (1.0 if k_scale is None else k_scale),
                    softcap=softcap or 0.0,
                    v_scale=1.0 if v_scale is None else v_scale,
                )
            )
            self._tick()
        return out, lse

    def _parts(self, batch: ForwardBatch, heads: int, causal: bool) -> Iterator[Part]:
        """The whole batch, or its decodes and then every prompt in pieces; queries that see all keys are not cut."""
        lens = list(zip(batch.q_lens, batch.kv_lens_host, strict=True))
        if not causal or sum(q_len * kv_len for q_len, kv_len in lens) * heads <= self._max_scores:
            yield Part(0, len(lens), 0, batch.q_starts, batch.kv_lens)
            return
        start = batch.num_decodes
        if start:
            yield Part(0, start, 0, batch.q_starts, batch.kv_lens)
        for row, (q_len, kv_len) in list(enumerate(lens))[start:]:
            step = max(1, self._max_scores // (heads * max(kv_len, 1)))
            for first in range(0, q_len, step):
                size = min(step, q_len - first)
                seen = kv_len - q_len + first + size
                ends = torch.tensor([0, size], dtype=torch.int32), torch.tensor([seen], dtype=torch.int32)
                yield Part(row, 1, start + first, *ends)
            start += q_len


def _at(tensor: torch.Tensor, row: int) -> int:
    """The address of a row."""
    return tensor.data_ptr() + row * tensor.stride(0) * tensor.element_size()

"""Attention by the compiled kernels: one call for a mixed batch, straight from the pages.

Queries and keys are multiplied in their own dtype and summed in float32, as is everything after; weights are rounded to
the dtype of the values before they are multiplied. What a query comes to depends on its position and keys alone, not on
what else is in the batch, nor on the number of threads: see `native/plan.h`.
"""

from __future__ import annotations

import torch

from sluice.attention.base import ForwardBatch, PagedKV
from sluice.attention.packed import PackedKV, dense_heads
from sluice.native.abi import AttentionCall
from sluice.native.library import Kernels


class NativeAttention:
    """The `AttentionBackend` over `PackedKV`."""

    def __init__(self, kernels: Kernels) -> None:
        self._kernels = kernels

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
        call = AttentionCall(
            q=q.data_ptr(),
            out=out.data_ptr(),
            lse=None if lse is None else lse.data_ptr(),
            k=kv.k.data_ptr(),
            v=kv.v.data_ptr(),
            page_table=batch.page_table.data_ptr(),
            q_starts=batch.q_starts.data_ptr(),
            kv_lens=batch.kv_lens.data_ptr(),
            q_stride=q.stride(0),
            table_stride=batch.page_table.stride(0),
            rows=len(batch.q_lens),
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
        self._kernels.attention(call)
        return out, lse

"""FlashInfer in plain torch, by the documentation of 0.6.18: the same names and rules, none of its speed.

Everything that it says it needs is checked here, since the real one is on no machine that runs these tests.
"""

from __future__ import annotations

import math
from typing import Any

import torch

from paged import Row, forward_batch
from sluice.attention.base import LayerKV
from sluice.attention.reference import ReferenceAttention
from sluice.attention.spec import AttentionSpec

Pages = tuple[torch.Tensor, torch.Tensor]


class _Wrapper:
    """What decode and prefill share: lists of pages in, attention out."""

    def __init__(self, float_workspace_buffer: torch.Tensor, kv_layout: str = "NHD") -> None:
        assert float_workspace_buffer.dtype == torch.uint8
        assert float_workspace_buffer.data_ptr() % 16 == 0
        assert not float_workspace_buffer.any(), "must be zero for its first use"
        assert kv_layout == "NHD"
        self.plans = 0

    def _take(
        self,
        q_indptr: torch.Tensor,
        indptr: torch.Tensor,
        indices: torch.Tensor,
        last_page_len: torch.Tensor,
        heads: int,
        kv_heads: int,
        head_dim: int,
        page_size: int,
        *,
        causal: bool,
        window_left: int,
        logits_soft_cap: float,
        q_data_type: torch.dtype,
        kv_data_type: torch.dtype,
        sm_scale: float,
        seq_lens: torch.Tensor | None,
    ) -> None:
        self.plans += 1
        lists = (q_indptr, indptr, indices, last_page_len)
        assert {each.dtype for each in lists} == {torch.int32}
        assert len(q_indptr) == len(indptr) == len(last_page_len) + 1
        assert len(indices) == int(indptr[-1])
        lengths = (indptr.diff() - 1) * page_size + last_page_len
        assert bool(((last_page_len >= 1) & (last_page_len <= page_size)).all()), "1 <= kv_last_page_len <= page_size"
        assert seq_lens is None or torch.equal(seq_lens, lengths)
        self._lists = lists
        self._sizes = heads, kv_heads, head_dim, page_size
        self._dtypes = q_data_type, kv_data_type
        self._rules: dict[str, Any] = {
            "causal": causal,
            "window": None if window_left < 0 else window_left + 1,
            "softcap": logits_soft_cap or None,
            "scale": sm_scale,
        }

    def _attend(
        self, q: torch.Tensor, pages: Pages, k_scale: float | None = None, v_scale: float | None = None
    ) -> tuple[torch.Tensor, torch.Tensor]:
        heads, kv_heads, head_dim, page_size = self._sizes
        k, v = pages
        assert q.shape == (int(self._lists[0][-1]), heads, head_dim)
        assert k.shape[1:] == v.shape[1:] == (page_size, kv_heads, head_dim)
        assert (q.dtype, k.dtype) == self._dtypes
        q_indptr, indptr, indices, last = (each.tolist() for each in self._lists)
        rows = []
        for row in range(len(last)):
            held = indices[indptr[row] : indptr[row + 1]]
            kv_len = (len(held) - 1) * page_size + last[row]
            q_len = q_indptr[row + 1] - q_indptr[row]
            rows.append(Row([0] * q_len, max(0, kv_len - q_len), held, kv_len))
        out, lse = ReferenceAttention().attend(
            q,
            LayerKV(k, v),
            forward_batch(rows, page_size),
            AttentionSpec.of(q, kv_heads, k_scale=k_scale or 1.0, v_scale=v_scale or 1.0, **self._rules),
            need_lse=True,
        )
        assert lse is not None
        return out, lse / math.log(2.0)

    def run(
        self,
        q: torch.Tensor,
        paged_kv_cache: Pages,
        *,
        k_scale: float | None = None,
        v_scale: float | None = None,
        out: torch.Tensor | None = None,
        lse: torch.Tensor | None = None,
        return_lse: bool = False,
    ) -> Any:
        found, found_lse = self._attend(q, paged_kv_cache, k_scale, v_scale)
        out = found if out is None else out.copy_(found)
        if not return_lse:
            return out
        return out, found_lse if lse is None else lse.copy_(found_lse)


class BatchDecodeWithPagedKVCacheWrapper(_Wrapper):
    def __init__(
        self,
        float_workspace_buffer: torch.Tensor,
        kv_layout: str = "NHD",
        use_cuda_graph: bool = False,
        use_tensor_cores: bool = False,
        paged_kv_indptr_buffer: torch.Tensor | None = None,
        paged_kv_indices_buffer: torch.Tensor | None = None,
        paged_kv_last_page_len_buffer: torch.Tensor | None = None,
    ) -> None:
        super().__init__(float_workspace_buffer, kv_layout)
        self._buffers = paged_kv_indptr_buffer, paged_kv_indices_buffer, paged_kv_last_page_len_buffer
        assert use_cuda_graph == all(buffer is not None for buffer in self._buffers)

    def plan(
        self,
        indptr: torch.Tensor,
        indices: torch.Tensor,
        last_page_len: torch.Tensor,
        num_qo_heads: int,
        num_kv_heads: int,
        head_dim: int,
        page_size: int,
        *,
        window_left: int = -1,
        logits_soft_cap: float | None = None,
        q_data_type: torch.dtype = torch.float16,
        kv_data_type: torch.dtype | None = None,
        sm_scale: float | None = None,
        seq_lens: torch.Tensor | None = None,
    ) -> None:
        self._take(
            torch.arange(len(indptr), dtype=torch.int32),
            *self._at_home(indptr, indices, last_page_len),
            num_qo_heads,
            num_kv_heads,
            head_dim,
            page_size,
            causal=False,
            window_left=window_left,
            logits_soft_cap=logits_soft_cap or 0.0,
            q_data_type=q_data_type,
            kv_data_type=kv_data_type or q_data_type,
            sm_scale=sm_scale or head_dim**-0.5,
            seq_lens=seq_lens,
        )

    def _at_home(self, *lists: torch.Tensor) -> list[torch.Tensor]:
        """In the buffers of a graph, if it has any: those are what its kernels read."""
        homes = []
        for buffer, values in zip(self._buffers, lists, strict=True):
            if buffer is None:
                homes.append(values)
                continue
            assert len(values) <= len(buffer), "must fit into the buffer of the graph"
            buffer[: len(values)].copy_(values)
            homes.append(buffer[: len(values)])
        return homes


class BatchPrefillWithPagedKVCacheWrapper(_Wrapper):
    def plan(
        self,
        qo_indptr: torch.Tensor,
        paged_kv_indptr: torch.Tensor,
        paged_kv_indices: torch.Tensor,
        paged_kv_last_page_len: torch.Tensor,
        num_qo_heads: int,
        num_kv_heads: int,
        head_dim_qk: int,
        page_size: int,
        causal: bool = False,
        sm_scale: float | None = None,
        window_left: int = -1,
        logits_soft_cap: float | None = None,
        q_data_type: torch.dtype = torch.float16,
        kv_data_type: torch.dtype | None = None,
        seq_lens: torch.Tensor | None = None,
        max_token_per_sequence: int | None = None,
    ) -> None:
        assert max_token_per_sequence in (None, int(qo_indptr.diff().max()))
        self._take(
            qo_indptr,
            paged_kv_indptr,
            paged_kv_indices,
            paged_kv_last_page_len,
            num_qo_heads,
            num_kv_heads,
            head_dim_qk,
            page_size,
            causal=causal,
            window_left=window_left,
            logits_soft_cap=logits_soft_cap or 0.0,
            q_data_type=q_data_type,
            kv_data_type=kv_data_type or q_data_type,
            sm_scale=sm_scale or head_dim_qk**-0.5,
            seq_lens=seq_lens,
        )


class MultiLevelCascadeAttentionWrapper:
    def __init__(self, num_levels: int, float_workspace_buffer: torch.Tensor, kv_layout: str = "NHD") -> None:
        self._levels = [
            BatchPrefillWithPagedKVCacheWrapper(float_workspace_buffer, kv_layout) for _ in range(num_levels)
        ]
        self.plans = 0

    def plan(
        self,
        qo_indptr_arr: list[torch.Tensor],
        paged_kv_indptr_arr: list[torch.Tensor],
        paged_kv_indices_arr: list[torch.Tensor],
        paged_kv_last_page_len: list[torch.Tensor],
        num_qo_heads: int,
        num_kv_heads: int,
        head_dim: int,
        page_size: int,
        causal: bool = False,
        **rules: Any,
    ) -> None:
        self.plans += 1
        lists = zip(
            qo_indptr_arr, paged_kv_indptr_arr, paged_kv_indices_arr, paged_kv_last_page_len, self._levels, strict=True
        )
        for number, (q_indptr, indptr, indices, last, level) in enumerate(lists):
            is_last = number == len(self._levels) - 1
            sizes = num_qo_heads, num_kv_heads, head_dim, page_size
            level.plan(q_indptr, indptr, indices, last, *sizes, causal=causal and is_last, **rules)

    def run(self, q: torch.Tensor, paged_kv_cache: Pages) -> torch.Tensor:
        outs, lses = zip(*(level.run(q, paged_kv_cache, return_lse=True) for level in self._levels), strict=True)
        weights = torch.stack(lses).mul(math.log(2.0)).softmax(0)[..., None]
        return (torch.stack(outs).float() * weights).sum(0).to(q.dtype)

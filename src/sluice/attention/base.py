"""The contract between plans turned into tensors (`runner`), models, and attention backends."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch


@dataclass(frozen=True, slots=True)
class ForwardBatch:
    """One step as tensors. Rows are the plan's chunks in order, decodes (one query token) first.

    N = query tokens of the step, B = rows, P = pages of the longest row, R = tokens whose logits are asked for.
    Tensors live on the model's device; the tuples repeat two of them on the host, so that no backend has to
    ask the device for a length.
    """

    input_ids: torch.Tensor
    """[N] int64"""
    positions: torch.Tensor
    """[N] int64, each token's position in its request"""
    kv_slots: torch.Tensor
    """[N] int64, `page * page_size + offset`: where each token's key and value are written"""
    page_table: torch.Tensor
    """[B, P] int32; entries past a row's length are 0"""
    q_starts: torch.Tensor
    """[B + 1] int32, prefix sums of `q_lens`"""
    kv_lens: torch.Tensor
    """[B] int32, tokens each row can see after this step (cached + computed + its own)"""
    logit_rows: torch.Tensor
    """[R] int64, indices into N of the tokens whose logits are asked for"""
    q_lens: tuple[int, ...]
    kv_lens_host: tuple[int, ...]
    num_decodes: int
    """The first `num_decodes` rows have exactly one query token."""
    shared_pages: int = 0
    """So many pages at the beginning of every decode's row are the same ones, and each row sees tokens behind them."""


class PagedKV(Protocol):
    """Paged keys and values of one layer. A backend may lay a page out as it likes; it is one contiguous piece."""

    @property
    def k(self) -> torch.Tensor:
        """[pages, ...]"""
        ...

    @property
    def v(self) -> torch.Tensor:
        """[pages, ...]"""
        ...

    @property
    def page_size(self) -> int: ...

    @property
    def kv_heads(self) -> int: ...

    def store(self, kv_slots: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> None:
        """Write k and v, each [N, kv_heads, head_dim], at `kv_slots` [N] int64."""
        ...

    def gather(self, pages: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Copies of the pages `pages` [...]: k and v, each [..., page_size, kv_heads, head_dim]."""
        ...


@dataclass(frozen=True, slots=True)
class LayerKV:
    """Pages as they read, each [pages, page_size, kv_heads, head_dim]."""

    k: torch.Tensor
    v: torch.Tensor

    @property
    def page_size(self) -> int:
        return self.k.shape[1]

    @property
    def kv_heads(self) -> int:
        return self.k.shape[2]

    def store(self, kv_slots: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> None:
        """See `PagedKV.store`."""
        self.k.flatten(0, 1).index_copy_(0, kv_slots, k)
        self.v.flatten(0, 1).index_copy_(0, kv_slots, v)

    def gather(self, pages: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """See `PagedKV.gather`."""
        return self.k[pages], self.v[pages]


class AttentionBackend(Protocol):
    """Attention of a ragged batch over paged KV. Implemented structurally, one file each."""

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
        """Attend each row's queries to its pages. The step's own KV is already stored.

        Args:
            q: [N, heads, head_dim]; `heads` is a multiple of the KV heads (GQA).
            kv: the layer's pages.
            batch: lengths and page table.
            scale: multiplies q.k.
            causal: query i of a row (position `kv_len - q_len + i`) sees positions up to its own; else all.
            window: a query sees at most this many latest positions, its own included.
            softcap: scores become `softcap * tanh(score / softcap)`.
            k_scale, v_scale: dequantisation factors of quantised KV.
            need_lse: also return the log-sum-exp.

        Returns:
            out [N, heads, head_dim] in q's dtype, and lse [N, heads], natural log, float32 (float64 for
            float64 inputs). A query that sees nothing gives zeros and -inf.
        """
        ...

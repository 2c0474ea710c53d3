"""The contract between the runner, models and attention: a step as tensors, paged KV, and what attends to it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, replace
from typing import ClassVar, Protocol, Self

import torch

from sluice.attention.spec import AttentionSpec, KVShape
from sluice.attention.states import LayerState, StateRows


@dataclass(frozen=True, slots=True)
class WindowRows:
    """Where the rows of a step find the pages of layers that see a window of the latest positions."""

    kv_slots: torch.Tensor
    """[N] int64, as in `ForwardBatch`"""
    page_table: torch.Tensor
    """[B, P] int32; a page of zeros in the place of pages that no query of a row sees"""


@dataclass(frozen=True, slots=True)
class ForwardBatch:
    """One step as tensors. Rows are the plan's chunks in order, decodes (one query token) first.

    N = query tokens of the step, B = rows, P = pages of the longest row, R = tokens whose logits are wanted.
    Tensors live on the model's device; the tuples repeat two of them on the host, so that reading a length never
    waits for the device.
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
    """[R] int64, indices into N of the tokens whose logits are wanted"""
    q_lens: tuple[int, ...]
    kv_lens_host: tuple[int, ...]
    num_decodes: int
    """The first `num_decodes` rows have exactly one query token."""
    shared_pages: int = 0
    """Leading pages that all decodes share. Every decode also sees tokens after them."""
    adapters: torch.Tensor | None = None
    """[N] int32, the slot of each token's adapter, -1 for none; None: no token has one."""
    states: StateRows | None = None
    """Where the rows find their states; None for a model whose layers have none."""
    layer_states: tuple[LayerState, ...] = ()
    """The states of the layers that have one, in their order."""
    window: WindowRows | None = None
    """Pages of the layers with a window; None: all layers have the same ones."""

    def of_windows(self) -> Self:
        """Return the step as layers with a window see it."""
        window = self.window
        if window is None:
            return self
        return replace(self, kv_slots=window.kv_slots, page_table=window.page_table, shared_pages=0)


class PagedKV(Protocol):
    """Paged keys and values of one layer. The layout within a page is the backend's; a page is contiguous."""

    layout: ClassVar[str]
    """Name of the layout, which a page file records."""

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
        """Return copies of the pages `pages` [...]: k and v, each [..., page_size, kv_heads, head_dim]."""
        ...


@dataclass(frozen=True, slots=True)
class LayerKV:
    """Pages in plain order, each [pages, page_size, kv_heads, head_dim]."""

    layout: ClassVar[str] = "plain"
    k: torch.Tensor
    v: torch.Tensor

    @classmethod
    def empty(cls, shape: KVShape) -> Self:
        """Return pages that were never written and may hold anything."""
        size = (shape.num_pages, shape.page_size, shape.num_kv_heads, shape.head_dim)
        return cls(*(torch.empty(size, dtype=shape.dtype, device=shape.device) for _ in range(2)))

    @property
    def page_size(self) -> int:
        return self.k.shape[1]

    @property
    def kv_heads(self) -> int:
        return self.k.shape[2]

    def store(self, kv_slots: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> None:
        self.k.flatten(0, 1).index_copy_(0, kv_slots, k)
        self.v.flatten(0, 1).index_copy_(0, kv_slots, v)

    def gather(self, pages: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return self.k[pages], self.v[pages]


class Attention(ABC):
    """Attention of a ragged batch over paged KV. One object serves one runner: all layers, one step after the other."""

    @abstractmethod
    def attend(
        self, q: torch.Tensor, kv: PagedKV, batch: ForwardBatch, spec: AttentionSpec, *, need_lse: bool = False
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Attend each row's queries to its pages. The step's own KV is already stored.

        Args:
            q: [N, heads, head_dim].
            kv: the layer's pages.
            batch: lengths and page table.
            spec: the layer's.
            need_lse: also return the log-sum-exp.

        Returns:
            out [N, heads, head_dim] in q's dtype, and lse [N, heads], natural log, float32 (float64 for
            float64 inputs). A query that sees nothing gives zeros and -inf.

        Raises:
            TypeError: pages or queries that this implementation does not read.
        """

    def plan(self, batch: ForwardBatch) -> None:  # noqa: B027
        """Prepare for a step that is about to run layer by layer. Called on the queue that computes it."""

    def plan_static(self, batch: ForwardBatch) -> None:  # noqa: B027
        """Prepare for a step of decodes that is about to be captured, or replayed, as a graph.

        Args:
            batch: its tensors are the same ones whenever the number of rows is; its lengths on the host are those of
                this step.
        """

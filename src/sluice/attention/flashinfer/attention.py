"""Attention by FlashInfer.

    a step          plan
    ------------    ---------------------------------------------------------------
    decodes         one wrapper; or two levels if they share a long prefix (cascade)
    extends         another wrapper: a kernel for both would suit neither
    a graph         a wrapper for each number of rows, planned anew before each replay

A wrapper keeps pinned memory that its plan is copied from. It is planned again only when that copy is done, which is
when the step before the planned one is.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch

from sluice.attention.base import Attention, ForwardBatch, PagedKV
from sluice.attention.flashinfer.api import LAYOUT, CascadeWrapper, FlashInfer, Wrapper
from sluice.attention.flashinfer.layer import LayerKind, layer_kind
from sluice.attention.spec import AttentionSpec

WORKSPACE_BYTES = 384 << 20
"""Bytes for partial results of keys that are split. Wrappers share them: their kernels run one after the other."""
CASCADE_TOKENS = 512
"""Shared prefix from which on reading it once for all decodes is tried."""
CASCADE_ROWS = 4
LN_2 = math.log(2.0)

Ints32 = npt.NDArray[np.int32]
ToHost = Callable[[Ints32], torch.Tensor]
"""Makes of an array a tensor on the host from which copies to the device do not wait."""


def pinned(array: Ints32) -> torch.Tensor:
    """Return an array in pinned memory."""
    return torch.from_numpy(array).pin_memory()


@dataclass(frozen=True, slots=True)
class PagedRows:
    """R rows of a step. Leading pages may be left out."""

    q_indptr: torch.Tensor
    """[R + 1] int32 on the host, prefix sums of the numbers of queries"""
    indptr: torch.Tensor
    """[R + 1] int32 on the host, prefix sums of the numbers of pages"""
    indices: torch.Tensor
    """[sum of pages] int32 on the device"""
    last_page_len: torch.Tensor
    """[R] int32 on the host, from 1 to the page size; 0 for a row without keys"""
    kv_lens: torch.Tensor
    """[R] int32 on the host"""
    max_q_len: int


def paged_rows(batch: ForwardBatch, rows: slice, page_size: int, to_host: ToHost, *, skip_pages: int = 0) -> PagedRows:
    """Return the rows `rows` of a step.

    Args:
        rows: a range of rows, with both ends.
        skip_pages: leading pages of each row to leave out; every row has more.
    """
    q_lens = np.array(batch.q_lens[rows], dtype=np.int32)
    kv_lens = np.array(batch.kv_lens_host[rows], dtype=np.int32) - skip_pages * page_size
    pages = -(-kv_lens // page_size)
    indptr = _prefix_sums(pages)
    table = batch.page_table[rows, skip_pages:]
    on_device = (batch.kv_lens[rows].long() + (page_size - 1)).div(page_size, rounding_mode="floor") - skip_pages
    total = int(indptr[-1])
    row_of = torch.repeat_interleave(on_device, output_size=total)
    begins = (on_device.cumsum(0) - on_device).index_select(0, row_of)
    indices = table[row_of, torch.arange(total, device=table.device) - begins]
    last = kv_lens - (pages - 1) * page_size
    return PagedRows(
        q_indptr=to_host(_prefix_sums(q_lens)),
        indptr=to_host(indptr),
        indices=indices,
        last_page_len=to_host(np.where(kv_lens > 0, last, 0).astype(np.int32)),
        kv_lens=to_host(kv_lens),
        max_q_len=int(q_lens.max()),
    )


def _prefix_sums(counts: Ints32) -> Ints32:
    return np.concatenate(([0], counts.cumsum())).astype(np.int32)


class Fence:
    """Holds the host until a copy out of its memory is done: an event of a CUDA stream."""

    def __init__(self) -> None:
        self._event = torch.cuda.Event()

    def set(self) -> None:
        """Mark the end of what the current CUDA stream was given so far."""
        self._event.record()

    def wait(self) -> None:
        """Wait until the device has reached the mark."""
        self._event.synchronize()


@dataclass(slots=True)
class _Plan:
    """A wrapper and the step that it is planned for."""

    wrapper: Wrapper
    fence: Fence
    step: int = -1


class _Part(NamedTuple):
    """The part of a step that a wrapper serves."""

    kind: LayerKind
    decodes: bool
    static_rows: int
    """0: steps of any number of rows"""


class FlashInferAttention(Attention):
    """Attention over `LayerKV` of bfloat16 or float16, with heads of 64, 128 or 256.

    Args:
        package: FlashInfer.
        device: of queries and pages.
        to_host: brings lists to where FlashInfer reads them.
        fence: makes a fence for each wrapper.
        workspace_bytes: size of the buffer for partial results.
    """

    def __init__(
        self,
        package: FlashInfer,
        device: torch.device,
        *,
        to_host: ToHost = pinned,
        fence: Callable[[], Fence] = Fence,
        workspace_bytes: int = WORKSPACE_BYTES,
    ) -> None:
        self._package = package
        self._device = device
        self._to_host = to_host
        self._fence = fence
        self._workspace = torch.zeros(workspace_bytes, dtype=torch.uint8, device=device)
        self._plans: dict[_Part, _Plan] = {}
        self._cascades: dict[LayerKind, tuple[CascadeWrapper, Fence]] = {}
        self._cascade_steps: dict[LayerKind, int] = {}
        self._static_pages = torch.empty(0, dtype=torch.int32, device=device)
        self._rows: dict[tuple[int, int], PagedRows] = {}
        self._step = 0
        self._is_static = False

    def plan(self, batch: ForwardBatch) -> None:
        self._begin(is_static=False)

    def plan_static(self, batch: ForwardBatch) -> None:
        """Plan all that the graph holds: no layer's code runs in a replay."""
        self._begin(is_static=True)
        for part in [part for part in self._plans if part.static_rows == len(batch.q_lens)]:
            self._planned(part, batch)

    def _begin(self, *, is_static: bool) -> None:
        self._step += 1
        self._is_static = is_static
        self._rows = {}

    def attend(
        self, q: torch.Tensor, kv: PagedKV, batch: ForwardBatch, spec: AttentionSpec, *, need_lse: bool = False
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        kind = layer_kind(q, kv, spec)
        q = q.contiguous()
        pages = (kv.k, kv.v)
        out = torch.empty_like(q)
        lse = torch.empty(q.shape[:2], dtype=torch.float32, device=q.device) if need_lse else None
        split = batch.num_decodes
        is_plain = not need_lse and spec.k_scale == spec.v_scale == 1.0 and spec.window is None
        for decodes, tokens in ((True, slice(0, split)), (False, slice(split, q.shape[0]))):
            if tokens.start == tokens.stop:
                continue
            if decodes and is_plain and self._cascade_pages(batch, kind):
                out[tokens] = self._cascade(kind, batch).run(q[tokens], pages)
                continue
            part = _Part(kind, decodes, len(batch.q_lens) if self._is_static else 0)
            self._planned(part, batch).run(
                q[tokens],
                pages,
                k_scale=_unless_one(spec.k_scale),
                v_scale=_unless_one(spec.v_scale),
                out=out[tokens],
                lse=None if lse is None else lse[tokens],
                return_lse=need_lse,
            )
        return out, None if lse is None else lse.mul_(LN_2)

    def _planned(self, part: _Part, batch: ForwardBatch) -> Wrapper:
        """Return the wrapper of a part, planned for this step."""
        if part not in self._plans:
            self._plans[part] = _Plan(self._new_wrapper(part, batch), self._fence())
        plan = self._plans[part]
        if plan.step < self._step:
            if plan.step >= 0:
                plan.fence.wait()
            self._plan_part(plan.wrapper, part, batch)
            plan.fence.set()
            plan.step = self._step
        return plan.wrapper

    def _plan_part(self, wrapper: Wrapper, part: _Part, batch: ForwardBatch) -> None:
        kind, split = part.kind, batch.num_decodes
        rows = self._rows_of((0, split) if part.decodes else (split, len(batch.q_lens)), batch, kind.page_size)
        options = {**kind.sizes, **kind.rules, "seq_lens": rows.kv_lens}
        if part.decodes:
            wrapper.plan(rows.indptr, rows.indices, rows.last_page_len, head_dim=kind.spec.head_dim, **options)
            return
        wrapper.plan(
            rows.q_indptr,
            rows.indptr,
            rows.indices,
            rows.last_page_len,
            head_dim_qk=kind.spec.head_dim,
            causal=kind.spec.causal,
            max_token_per_sequence=rows.max_q_len,
            **options,
        )

    def _rows_of(self, rows: tuple[int, int], batch: ForwardBatch, page_size: int) -> PagedRows:
        """Return rows of the step, laid out once for all kinds of layers."""
        if rows not in self._rows:
            self._rows[rows] = paged_rows(batch, slice(*rows), page_size, self._to_host)
        return self._rows[rows]

    def _new_wrapper(self, part: _Part, batch: ForwardBatch) -> Wrapper:
        if not part.decodes:
            return self._package.BatchPrefillWithPagedKVCacheWrapper(self._workspace, LAYOUT)
        tensor_cores = part.kind.suits_tensor_cores
        if not part.static_rows:
            return self._package.BatchDecodeWithPagedKVCacheWrapper(
                self._workspace, LAYOUT, use_tensor_cores=tensor_cores
            )
        most = batch.page_table.numel()
        if len(self._static_pages) < most:  # the largest comes first, and the others share its list
            self._static_pages = torch.empty(most, dtype=torch.int32, device=self._device)
        return self._package.BatchDecodeWithPagedKVCacheWrapper(
            self._workspace,
            LAYOUT,
            use_cuda_graph=True,
            use_tensor_cores=tensor_cores,
            paged_kv_indptr_buffer=torch.empty(part.static_rows + 1, dtype=torch.int32, device=self._device),
            paged_kv_indices_buffer=self._static_pages[:most],
            paged_kv_last_page_len_buffer=torch.empty(part.static_rows, dtype=torch.int32, device=self._device),
        )

    def _cascade_pages(self, batch: ForwardBatch, kind: LayerKind) -> int:
        """Return how many leading pages to read once for all decodes. 0: each decode reads its own."""
        if self._is_static or batch.num_decodes < CASCADE_ROWS:
            return 0
        return batch.shared_pages if batch.shared_pages * kind.page_size >= CASCADE_TOKENS else 0

    def _cascade(self, kind: LayerKind, batch: ForwardBatch) -> CascadeWrapper:
        """Return the wrapper of two levels: the pages that all decodes share, then each one's own."""
        if kind not in self._cascades:
            wrapper = self._package.MultiLevelCascadeAttentionWrapper(2, self._workspace, LAYOUT)
            self._cascades[kind] = wrapper, self._fence()
        wrapper, fence = self._cascades[kind]
        if self._cascade_steps.get(kind) != self._step:
            if kind in self._cascade_steps:
                fence.wait()
            self._plan_cascade(wrapper, kind, batch)
            fence.set()
            self._cascade_steps[kind] = self._step
        return wrapper

    def _plan_cascade(self, wrapper: CascadeWrapper, kind: LayerKind, batch: ForwardBatch) -> None:
        shared, decodes = batch.shared_pages, batch.num_decodes
        own = paged_rows(batch, slice(0, decodes), kind.page_size, self._to_host, skip_pages=shared)
        wrapper.plan(
            [self._list(0, decodes), own.q_indptr],
            [self._list(0, shared), own.indptr],
            [batch.page_table[0, :shared].contiguous(), own.indices],
            [self._list(kind.page_size), own.last_page_len],
            head_dim=kind.spec.head_dim,
            causal=kind.spec.causal,
            **kind.sizes,
            **kind.rules,
        )

    def _list(self, *numbers: int) -> torch.Tensor:
        return self._to_host(torch.tensor(numbers, dtype=torch.int32).numpy())


def _unless_one(factor: float) -> float | None:
    """Return a factor that changes something. FlashInfer multiplies by others, too, in a kernel of their own."""
    return None if factor == 1.0 else factor

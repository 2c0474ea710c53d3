"""Some rows of a step in the form that FlashInfer plans from: lists of lengths on the host, page ids on the device."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

from sluice.attention.base import ForwardBatch

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

"""The page table: the pages that each slot's request holds, a row a slot, on the device and as a copy on the host."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch

from sluice.runner.inputs import Ints, Ints32


class TableChanges(NamedTuple):
    """What is left to do on the device: empty rows, then write single entries."""

    cleared: Ints
    """[F] rows"""
    entries: Ints
    """[P] indices into the flattened table"""
    pages: Ints32
    """[P]"""


class PageTable:
    """Rows of page ids in position order, 0 beyond a row's end.

    The host's copy runs ahead of the device's by what is still queued there, which is why both exist: plans are laid
    out from the one while the other still serves the step before.

    Args:
        num_slots: rows.
        row_pages: most pages of a row.
        device: where the forward runs.
        scratch_page: the page of an additional row, number `num_slots`, which is on the device alone: rows that only
            pad a batch write to it.
    """

    def __init__(self, num_slots: int, row_pages: int, device: torch.device, scratch_page: int | None = None) -> None:
        self.host: Ints32 = np.zeros((num_slots, row_pages), dtype=np.int32)
        self.lengths = np.zeros(num_slots, dtype=np.int64)
        rows = num_slots + (scratch_page is not None)
        self._device = torch.zeros((rows, row_pages), dtype=torch.int32, device=device)
        if scratch_page is not None:
            self._device[num_slots, 0] = scratch_page

    @property
    def row_pages(self) -> int:
        return int(self.host.shape[1])

    def plan(self, cleared: Sequence[int], additions: Sequence[tuple[int, int, Sequence[int]]]) -> TableChanges:
        """Change the host's copy, and return what is left to do on the device.

        Args:
            cleared: slots whose rows are emptied first.
            additions: (slot, place in its row of the first page, pages up to the row's end), each slot at most once.
                Pages that the row had from there on held rejected drafts alone. The caller has checked the room.
        """
        rows = np.array(cleared, dtype=np.int64)
        self.host[rows] = 0
        self.lengths[rows] = 0
        entries: list[int] = []
        pages: list[int] = []
        for slot, place, new_pages in additions:
            first = slot * self.row_pages + place
            entries.extend(range(first, first + len(new_pages)))
            pages.extend(new_pages)
            self.lengths[slot] = place + len(new_pages)
        changes = TableChanges(rows, np.array(entries, dtype=np.int64), np.array(pages, dtype=np.int32))
        self.host.reshape(-1)[changes.entries] = changes.pages
        return changes

    def change(self, cleared: torch.Tensor, entries: torch.Tensor, pages: torch.Tensor) -> None:
        """Change the device's copy, by `TableChanges` as tensors."""
        if len(cleared):
            self._device.index_fill_(0, cleared, 0)
        if len(entries):
            self._device.view(-1).index_copy_(0, entries, pages)

    def rows(self, slots: torch.Tensor, kv_lens: torch.Tensor, num_pages: int, page_size: int) -> torch.Tensor:
        """Return the pages in use by a step.

        Args:
            slots: [B] int64, on the device.
            kv_lens: [B] int32, tokens visible to each row.
            num_pages: P, pages of the longest row.

        Returns:
            [B, P] int32, 0 beyond the pages that hold a row's `kv_lens` tokens (a row may hold more in advance).
        """
        rows = self._device[:, :num_pages].index_select(0, slots)
        first_token = torch.arange(0, num_pages * page_size, page_size, dtype=torch.int32, device=slots.device)
        return rows.masked_fill_(first_token >= kv_lens[:, None], 0)

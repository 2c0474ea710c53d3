"""The page table: which pages hold the context of each slot, in its order."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch

from sluice.runner.inputs import Ints, Ints32

Additions = Sequence[tuple[int, int, Sequence[int]]]
"""(slot, place in its row of the first page, pages up to the row's end), each slot at most once."""


@dataclass(frozen=True, slots=True)
class WindowTable:
    """The pages of layers whose queries see a window of the latest positions."""

    length: int
    """Positions that a query sees at most, its own included."""
    null_page: int
    """A page of zeros that is never written. It is in the place of pages that no query of a row sees."""
    scratch_page: int | None = None
    """Of these layers, what `PageTable` has of the others."""


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
        window: the layers with a window have pages of their own, and so each slot has a second row. None: all layers
            have the same pages.
    """

    def __init__(
        self,
        num_slots: int,
        row_pages: int,
        device: torch.device,
        scratch_page: int | None = None,
        window: WindowTable | None = None,
    ) -> None:
        self.host: Ints32 = np.zeros((num_slots, row_pages), dtype=np.int32)
        self.lengths = np.zeros(num_slots, dtype=np.int64)
        self.window = window
        self.window_host: Ints32 | None = None if window is None else np.zeros_like(self.host)
        """The second rows. Pages that a window has left stay in them until others are put in their place."""
        self._second = num_slots + (scratch_page is not None)
        """Where the second rows begin on the device."""
        self._device = torch.zeros(
            (self._second * (1 if window is None else 2), row_pages), dtype=torch.int32, device=device
        )
        if scratch_page is not None:
            self._device[num_slots, 0] = scratch_page
        if window is not None and window.scratch_page is not None:
            self._device[self._second + num_slots, 0] = window.scratch_page

    @property
    def row_pages(self) -> int:
        return int(self.host.shape[1])

    def plan(self, cleared: Sequence[int], additions: Additions, of_windows: Additions = ()) -> TableChanges:
        """Change the host's copy, and return what is left to do on the device.

        Args:
            cleared: slots whose rows are emptied first.
            additions: pages. Those that the row had from the first place on held rejected drafts alone. The caller has
                checked the room.
            of_windows: the same for the second rows.
        """
        rows = np.array(cleared, dtype=np.int64)
        self.host[rows] = 0
        self.lengths[rows] = 0
        for slot, place, new_pages in additions:
            self.lengths[slot] = place + len(new_pages)
        entries, pages = self._write(self.host, additions)
        if of_windows:
            assert self.window_host is not None, "pages of windows in a table without"
            seconds, others = self._write(self.window_host, of_windows)
            entries = np.concatenate((entries, seconds + self._second * self.row_pages))
            pages = np.concatenate((pages, others))
        return TableChanges(rows, entries, pages)

    def _write(self, host: Ints32, additions: Additions) -> tuple[Ints, Ints32]:
        """Write pages to a host's copy. Return the places in the flattened table, and the pages."""
        places: list[int] = []
        pages: list[int] = []
        for slot, place, new_pages in additions:
            first = slot * self.row_pages + place
            places.extend(range(first, first + len(new_pages)))
            pages.extend(new_pages)
        entries, written = np.array(places, dtype=np.int64), np.array(pages, dtype=np.int32)
        host.reshape(-1)[entries] = written
        return entries, written

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

    def window_rows(
        self, slots: torch.Tensor, kv_lens: torch.Tensor, q_starts: torch.Tensor, num_pages: int, page_size: int
    ) -> torch.Tensor:
        """Return the pages in use by a step in layers with a window.

        Args:
            q_starts: [B + 1] int32, prefix sums of the rows' query tokens; other arguments as of `rows`.

        Returns:
            [B, P] int32, the null page in the place of pages that no query of a row sees.
        """
        assert self.window is not None, "no layer has a window"
        rows = self._device[:, :num_pages].index_select(0, slots + self._second)
        first_token = torch.arange(0, num_pages * page_size, page_size, dtype=torch.int32, device=slots.device)
        seen_from = kv_lens - q_starts.diff() - (self.window.length - 1)
        is_left = first_token <= (seen_from - page_size)[:, None]
        return rows.masked_fill_(is_left | (first_token >= kv_lens[:, None]), self.window.null_page)

"""Which pages each slot's request holds: one row a slot, on the device, and a copy on the host to plan from."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from sluice.runner.inputs import Ints32
from sluice.runner.upload import upload


class PageTable:
    """Rows of page ids in position order, 0 beyond a row's end.

    The host's copy runs ahead of the device's by what is still queued there, which is why both exist: plans are laid
    out from the one while the other still serves the step before.

    Args:
        num_slots: rows.
        row_pages: most pages of a row.
        device: where the forward runs.
    """

    def __init__(self, num_slots: int, row_pages: int, device: torch.device) -> None:
        self.host: Ints32 = np.zeros((num_slots, row_pages), dtype=np.int32)
        self.lengths = np.zeros(num_slots, dtype=np.int64)
        self._device = torch.zeros((num_slots, row_pages), dtype=torch.int32, device=device)

    @property
    def row_pages(self) -> int:
        return int(self.host.shape[1])

    def clear(self, slots: Sequence[int]) -> None:
        """Empty rows."""
        if not slots:
            return
        rows = np.array(slots, dtype=np.int64)
        self.host[rows] = 0
        self.lengths[rows] = 0
        (on_device,) = upload(self._device.device, rows)
        self._device.index_fill_(0, on_device, 0)

    def append(self, additions: Sequence[tuple[int, Sequence[int]]]) -> None:
        """Append pages to rows, given as (slot, pages), each slot at most once. The caller has checked the room."""
        places: list[int] = []
        pages: list[int] = []
        for slot, new_pages in additions:
            first = slot * self.row_pages + int(self.lengths[slot])
            places.extend(range(first, first + len(new_pages)))
            pages.extend(new_pages)
            self.lengths[slot] += len(new_pages)
        if not pages:
            return
        at, values = np.array(places, dtype=np.int64), np.array(pages, dtype=np.int32)
        self.host.reshape(-1)[at] = values
        at_device, values_device = upload(self._device.device, at, values)
        self._device.view(-1).index_copy_(0, at_device, values_device)

    def rows(self, slots: torch.Tensor, kv_lens: torch.Tensor, num_pages: int, page_size: int) -> torch.Tensor:
        """The pages in use by a step.

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

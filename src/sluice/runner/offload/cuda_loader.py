"""Loads from host memory on a GPU: copies on a stream of their own, beside the computation."""

from __future__ import annotations

from typing import Protocol

import torch

from sluice.attention.base import PagedKV
from sluice.device.pages import DevicePages
from sluice.device.queues import DeviceQueue, Event
from sluice.runner.offload.loaders import BlockLoad, LoadTotals


class HostPages(Protocol):
    """Pages in memory that the device can copy from: a `HostTier`."""

    def layer(self, host_page: int, layer: int) -> torch.Tensor:
        """[2, part_bytes] uint8, keys and values of one layer of a page."""
        ...


class StreamLoader:
    """A `Loader` whose copies the device makes.

    What is computed on `compute` is ordered behind a load by its event, and a load behind what read the slot before it
    by a fence; the host waits for neither.

    Args:
        ring: pages of one layer, `block_pages` for each slot of the ring.
        loading: runs the copies.
        compute: runs whatever reads the ring.
    """

    def __init__(
        self, stored: HostPages, ring: PagedKV, block_pages: int, loading: DeviceQueue, compute: DeviceQueue
    ) -> None:
        self._stored = stored
        self._pages = DevicePages([ring])
        self._block_pages = block_pages
        self._loading = loading
        self._compute = compute
        self.totals = LoadTotals()

    def start(self, load: BlockLoad, slot: int, fence: Event | None) -> Event:
        """See `Loader.start`."""
        if fence is not None:
            self._loading.wait(fence)
        self._loading.run(lambda: self._copy(load, slot))
        self.totals.bytes += len(load.pages) * self._pages.page_bytes
        return self._loading.record()

    def has_come(self, handle: Event, seconds: float) -> bool:
        """See `Loader.has_come`: the device waits, not the host."""
        return True

    def finish(self, handle: Event) -> None:
        """See `Loader.finish`."""
        self._compute.wait(handle)

    def forget(self, handle: Event) -> None:
        """See `Loader.forget`. Copies run in order: who fills the slot next comes behind it."""

    def fence(self) -> Event:
        """See `Loader.fence`."""
        return self._compute.record()

    def close(self) -> None:
        """See `Loader.close`. What is on its way ends by itself."""

    @torch.inference_mode()
    def _copy(self, load: BlockLoad, slot: int) -> None:
        first = slot * self._block_pages
        for place, page in enumerate(load.pages, start=first):
            self._pages.copy_in(place, self._stored.layer(page, load.layer))

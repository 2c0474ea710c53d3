"""The host tier: pages in host memory, which the device copies in plan order."""

from __future__ import annotations

import torch

from sluice.device.memory import tensor_bytes
from sluice.device.pages import DevicePages
from sluice.device.queues import DoneEvent, Event, HostBuffers, wait_until

SLAB_BYTES = 256 << 20
"""Size of the pieces in which memory is allocated: torch rounds pinned memory up to a power of two."""


class HostTier:
    """Pages on the host.

    A page's checksum is computed on the device, where the bytes already are: the sum of its 64-bit words, each times an
    odd number of its own, so that every flipped or exchanged word is noticed. It reaches the host with the step.

    Args:
        num_pages: pages of the tier.
        pages: those of the device.
        host_buffer: makes memory that the device can copy from and to.
    """

    def __init__(self, num_pages: int, pages: DevicePages, host_buffer: HostBuffers) -> None:
        self.num_pages = num_pages
        self._pages = pages
        self._in_slab = max(1, SLAB_BYTES // pages.page_bytes)
        slab_bytes = SLAB_BYTES if num_pages >= self._in_slab > 1 else min(num_pages, self._in_slab) * pages.page_bytes
        self._slabs = [host_buffer((slab_bytes,), torch.uint8) for _ in range(-(-num_pages // self._in_slab))]
        words = -(-pages.page_bytes // 8)
        # The bytes that fill up the last word are never written, so they are the same for all pages.
        self._scratch = torch.zeros(words * 8, dtype=torch.uint8, device=pages.device)
        steps = torch.arange(words, dtype=torch.int64, device=pages.device)
        self._weights = (steps * 0x1E3779B97F4A7C16 + 0x6A09E667F3BCC909) | 1
        self._stored: dict[int, Event] = {}

    @property
    def nbytes(self) -> int:
        """Bytes of all pages."""
        return tensor_bytes(self._slabs)

    def page(self, host_page: int) -> torch.Tensor:
        """Return the memory of a page, [parts, part_bytes] uint8."""
        slab, place = divmod(host_page, self._in_slab)
        size = self._pages.page_bytes
        memory = self._slabs[slab][place * size : (place + 1) * size]
        return memory.view(self._pages.num_parts, self._pages.part_bytes)

    def store(self, device_page: int, host_page: int) -> torch.Tensor:
        """Copy a page to the host, as work of a queue. Return its checksum, an int64 on the device."""
        self._gather(device_page)
        self.page(host_page).copy_(self._page_of_scratch(), non_blocking=True)
        return self._checksum()

    def load(self, host_page: int, device_page: int) -> torch.Tensor:
        """Copy a page to the device, as work of a queue. Return the checksum of what has arrived."""
        self._pages.copy_in(device_page, self.page(host_page))
        self._gather(device_page)
        return self._checksum()

    def stored(self, host_page: int, event: Event) -> None:
        """Note that the work that stores a page was queued before `event`."""
        self._stored[host_page] = event

    def read(self, host_page: int, into: torch.Tensor) -> None:
        """Copy a page to `into` [parts, part_bytes] uint8 on the host, once its store has ended."""
        event = self._stored.pop(host_page, DoneEvent())
        if not event.query():
            wait_until(event.query)
        into.copy_(self.page(host_page))

    def layer(self, host_page: int, layer: int) -> torch.Tensor:
        """Return keys and values of one layer of a page whose store has ended, [2, part_bytes] uint8."""
        return self.page(host_page)[2 * layer : 2 * layer + 2]

    def _gather(self, device_page: int) -> None:
        self._pages.copy_out(device_page, self._page_of_scratch())

    def _page_of_scratch(self) -> torch.Tensor:
        return self._scratch[: self._pages.page_bytes].view(self._pages.num_parts, self._pages.part_bytes)

    def _checksum(self) -> torch.Tensor:
        return (self._scratch.view(torch.int64) * self._weights).sum()

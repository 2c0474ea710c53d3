"""Who brings blocks of stored pages into the ring, beside the computation."""

from __future__ import annotations

import time
from collections.abc import Sequence
from concurrent.futures import Future
from concurrent.futures import wait as wait_for
from dataclasses import dataclass
from functools import partial
from typing import Generic, NamedTuple, Protocol, TypeVar

from sluice.attention.base import PagedKV
from sluice.device.background import Background
from sluice.device.pages import DevicePages

Handle = TypeVar("Handle")
Fence = TypeVar("Fence")

CLOSING = 5.0
"""Seconds that a read may take to end when nobody waits for it any more."""


class StoredPages(Protocol):
    """KV pages beneath the device, by their number on that tier: a `PageFile`."""

    def read_layer(self, page: int, layer: int, k: memoryview, v: memoryview) -> None:
        """Copy keys and values of one layer of a page, as bytes.

        Raises:
            Exception: the page cannot be read, or is not what was stored; the message is for the user.
        """
        ...


class BlockLoad(NamedTuple):
    """Some consecutive pages of one layer of one request."""

    layer: int
    pages: Sequence[int]
    """Numbers on the tier, at most those of a block."""
    block: int
    """Its number in the context."""


@dataclass
class LoadTotals:
    """What was loaded since the start."""

    bytes: int = 0
    seconds: float = 0.0
    """Spent copying, whoever did it."""
    waited: float = 0.0
    """Of these, how long the computation stood still."""


class Loader(Protocol[Handle, Fence]):
    """Copies blocks into ring slots, in the order of `start`."""

    totals: LoadTotals

    def start(self, load: BlockLoad, slot: int, fence: Fence | None) -> Handle:
        """Begin to fill a slot, not before its fence."""
        ...

    def has_come(self, handle: Handle, seconds: float) -> bool:
        """The block is there, or will be whenever what is computed from now on reads it, or can not be had.

        Args:
            seconds: to wait for it, at most.
        """
        ...

    def finish(self, handle: Handle) -> None:
        """What is computed from now on finds the block there. It has come.

        Raises:
            Exception: it could not be read.
        """
        ...

    def forget(self, handle: Handle) -> None:
        """Nobody will read the block: its slot may be filled anew."""
        ...

    def fence(self) -> Fence | None:
        """A point behind all that is computed so far."""
        ...

    def close(self) -> None: ...


class ThreadLoader(Generic[Fence]):
    """Loads on a CPU: one thread reads, while the caller computes.

    Args:
        stored: where pages are read from.
        ring: pages of one layer, `block_pages` for each slot of the ring.
    """

    def __init__(self, stored: StoredPages, ring: PagedKV, block_pages: int) -> None:
        self._stored = stored
        pages = DevicePages([ring])
        self._views = [pages.views(page) for page in range(pages.num_pages)]
        self._block_pages = block_pages
        self._page_bytes = pages.page_bytes
        self._reading = Background("sluice-prefetch")
        self._is_open = True
        self.totals = LoadTotals()

    def start(self, load: BlockLoad, slot: int, fence: Fence | None) -> Future[None]:
        """See `Loader.start`."""
        return self._reading.submit(partial(self._read, load, slot))

    def has_come(self, handle: Future[None], seconds: float) -> bool:
        """See `Loader.has_come`."""
        if not handle.done() and seconds > 0:
            began = time.perf_counter()
            wait_for([handle], seconds)
            self.totals.waited += time.perf_counter() - began
        return handle.done()

    def finish(self, handle: Future[None]) -> None:
        """See `Loader.finish`."""
        handle.result(timeout=0)

    def forget(self, handle: Future[None]) -> None:
        """See `Loader.forget`. A read under way goes on, but who fills the slot next comes behind it."""
        handle.cancel()

    def fence(self) -> None:
        """What was computed on a CPU is over."""
        return

    def close(self) -> None:
        """See `Loader.close`. A read that has not ended after `CLOSING` is left alone: it may never end."""
        self._is_open = False
        self._reading.close(CLOSING)

    def _read(self, load: BlockLoad, slot: int) -> None:
        began = time.perf_counter()
        first = slot * self._block_pages
        for place, page in enumerate(load.pages, start=first):
            if not self._is_open:
                return  # it hung, and its file is somebody else's by now
            self._stored.read_layer(page, load.layer, *self._views[place])
        self.totals.bytes += len(load.pages) * self._page_bytes
        self.totals.seconds += time.perf_counter() - began

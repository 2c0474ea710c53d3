"""Loaders, which copy blocks of stored pages into the ring while a chunk is computed.

From host memory the device copies blocks itself, on a queue of its own (`QueueLoader`). Its computation waits for them
there, so a step may be planned with blocks that are still to come. From a disk a thread reads blocks ahead
(`DiskLoader`) and reports the work items whose blocks are in the ring, so that no step waits for a disk.
"""

from __future__ import annotations

import logging
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Generic, NamedTuple, Protocol, TypeVar

import torch

from sluice.attention.base import PagedKV
from sluice.device.background import Background
from sluice.device.pages import DevicePages
from sluice.device.queues import DeviceQueue, Event
from sluice.storage.host_tier import HostTier
from sluice.storage.page_file import PageFile

Handle = TypeVar("Handle")
Fence = TypeVar("Fence")

CLOSING = 5.0
"""Seconds that `close` waits for a read under way."""
GIVE_UP = 30.0
"""Seconds without any progress after which a read is given up."""

LOGGER = logging.getLogger("sluice.engine")
Report = Callable[[int, int, str | None, int | None], None]
"""Called with the ticket of a chunk, how many of its work items have their blocks in the ring, from the first one on,
why a block cannot be read, if one cannot, and which page of it, if it is one alone."""


class BlockLoad(NamedTuple):
    """Pages of one layer of one request, to be copied into a buffer of the ring."""

    layer: int
    pages: Sequence[int]
    """Numbers of the pages on the tier, at most those of a block."""
    places: Sequence[int]
    """Numbers of the pages in the context, in ascending order."""
    ticket: int = 0
    """Names the chunk that attends to it."""
    ready: int = 0
    """How many work items of the chunk, from the first one on, have all their blocks once this one is loaded; 0 if it
    is not the last block of a work item."""


@dataclass
class LoadTotals:
    """Totals of the blocks that were loaded since the start."""

    bytes: int = 0
    seconds: float = 0.0
    """Time spent copying."""
    waited: float = 0.0
    """Time in which a chunk could not continue because its blocks were not there."""


class Loader(Protocol[Handle, Fence]):
    """Copies blocks into buffers of the ring, in the order of `start`."""

    totals: LoadTotals

    def start(self, load: BlockLoad, buffer: int, fence: Fence | None) -> Handle:
        """Begin to fill a buffer, not before its fence."""
        ...

    def finish(self, handle: Handle) -> None:
        """Let what is computed from now on find the block in its buffer."""
        ...

    def forget(self, handle: Handle) -> None:
        """Drop a load: the block will not be read, and its buffer may be filled again."""
        ...

    def fence(self) -> Fence | None:
        """Return a point behind all that is computed so far."""
        ...

    def did(self, ticket: int, items: int) -> None:
        """Note that a chunk has done its first `items` work items and is not complete."""
        ...

    def close(self) -> None: ...


class QueueLoader:
    """A `Loader` whose copies the device makes.

    What runs on `compute` is ordered behind a load by the load's event, and a load behind the last reader of its buffer
    by a fence; the host waits for neither.

    Args:
        stored: the pages to copy from.
        ring: pages of one layer, `block_pages` for each buffer of the ring.
        loading: the queue that runs the copies.
        compute: the queue that runs what reads the ring.
    """

    def __init__(
        self, stored: HostTier, ring: PagedKV, block_pages: int, loading: DeviceQueue, compute: DeviceQueue
    ) -> None:
        self._stored = stored
        self._pages = DevicePages([ring])
        self._block_pages = block_pages
        self._loading = loading
        self._compute = compute
        self.totals = LoadTotals()

    def start(self, load: BlockLoad, buffer: int, fence: Event | None) -> Event:
        if fence is not None:
            self._loading.wait(fence)
        self._loading.run(lambda: self._copy(load, buffer))
        self.totals.bytes += len(load.pages) * self._pages.page_bytes
        return self._loading.record()

    def finish(self, handle: Event) -> None:
        self._compute.wait(handle)

    def forget(self, handle: Event) -> None:
        """Do nothing: copies run in order, so the next one into this buffer comes behind this one."""

    def fence(self) -> Event:
        return self._compute.record()

    def did(self, ticket: int, items: int) -> None:
        pass

    def close(self) -> None:
        """Do nothing: copies under way end by themselves."""

    @torch.inference_mode()
    def _copy(self, load: BlockLoad, buffer: int) -> None:
        for place, page in enumerate(load.pages, start=buffer * self._block_pages):
            self._pages.copy_in(place, self._stored.layer(page, load.layer))


class UnreadablePage(NamedTuple):
    """A page that is not what was stored, or cannot be read."""

    page: int
    """Number of the page on the tier."""
    why: str


@dataclass(slots=True, eq=False)
class _Read:
    """A block that a `DiskLoader` was asked for and has not read yet."""

    load: BlockLoad
    buffer: int
    asked_at: float
    is_done: bool = False
    is_dropped: bool = False


class DiskLoader(Generic[Fence]):
    """A `Loader` for a CPU, whose thread reads ahead into the ring while others compute.

    It reports when half of the ring has come since the last report, so that one half can be computed while the other
    loads, and when it has nothing more to read. A second thread reports reads that do not end.

    Args:
        stored: the pages to read.
        ring: pages of one layer, `block_pages` for each buffer of the ring.
        report: called from the threads of the loader.
    """

    def __init__(self, stored: PageFile, ring: PagedKV, block_pages: int, report: Report) -> None:
        pages = DevicePages([ring])
        self._stored = stored
        self._buffers = [pages.views(first, block_pages) for first in range(0, pages.num_pages, block_pages)]
        self._part_bytes = pages.part_bytes
        self._report = report
        self._report_every = max(1, pages.num_pages // block_pages // 2)
        self._reader = Background("sluice-read-ahead")
        self._watch = Background("sluice-read-ahead-watch")
        self._closed = threading.Event()
        weakref.finalize(self, self._closed.set)
        self._lock = threading.Lock()
        """Guards what follows."""
        self._reads: deque[_Read] = deque()
        """Blocks that have not come, in order."""
        self._is_watched = False
        self._last_end = 0.0
        """When a read ended last."""
        self._latest: BlockLoad | None = None
        """The last block of the work items that are ready and not reported."""
        self._num_unreported = 0
        """Blocks that have come since the last report."""
        self._reported = (-1, 0)
        """The ticket and the work items of the latest report."""
        self._over = -1
        """The ticket of the chunk that lost a page last: it is over, and its other pages may be others' by now."""
        self._waits_since: float | None = None
        """When a chunk had done all work items that were reported."""
        self.totals = LoadTotals()

    def start(self, load: BlockLoad, buffer: int, fence: Fence | None) -> _Read:
        read = _Read(load, buffer, time.perf_counter())
        with self._lock:
            self._reads.append(read)
            must_watch, self._is_watched = not self._is_watched, True
        self._reader.submit(partial(self._run, read))
        if must_watch:
            self._watch.submit(partial(_watch, weakref.ref(self), self._closed))
        return read

    def finish(self, handle: _Read) -> None:
        assert handle.is_done, f"{handle} was to be attended to before it was reported"

    def forget(self, handle: _Read) -> None:
        """Drop a load. A read under way continues, but the next one into its buffer comes behind it."""
        handle.is_dropped = True

    def fence(self) -> None:
        """Return nothing: what was computed on a CPU is over."""
        return

    def did(self, ticket: int, items: int) -> None:
        with self._lock:
            if self._reported[0] != ticket or self._reported[1] <= items:
                self._waits_since = time.perf_counter()

    def close(self) -> None:
        """Read no more. A read that has not ended after `CLOSING` is left alone: it may never end."""
        self._closed.set()
        self._reader.close(CLOSING)
        self._watch.close(CLOSING)

    def _run(self, read: _Read) -> None:
        read.is_dropped = read.is_dropped or read.load.ticket == self._over
        lost = None if read.is_dropped else self._read(read)
        self._ended(read, lost)

    def _read(self, read: _Read) -> UnreadablePage | None:
        """Read a block. Return a page of it that cannot be read, if there is one."""
        began, load = time.perf_counter(), read.load
        if self._closed.is_set():
            return None  # the read before this one hung, and its file may be closed and its number used again
        size = len(load.pages) * self._part_bytes
        k, v = self._buffers[read.buffer]
        try:
            self._stored.read_layer(load.pages, load.layer, k[:size], v[:size])
        except Exception:  # noqa: BLE001 - whatever it is, single pages are tried
            lost = self._unreadable(load, k, v)
            if lost is not None:
                return lost
        self.totals.bytes += 2 * size
        self.totals.seconds += time.perf_counter() - began
        read.is_done = True
        return None

    def _unreadable(self, load: BlockLoad, k: memoryview, v: memoryview) -> UnreadablePage | None:
        """Read the pages of a block one by one. Return the first that cannot be read; None if all can be now."""
        for place, page in enumerate(load.pages):
            part = slice(place * self._part_bytes, (place + 1) * self._part_bytes)
            try:
                self._stored.read_layer([page], load.layer, k[part], v[part])
            except Exception as failure:  # noqa: BLE001 - whatever it is, the page is lost
                return UnreadablePage(page, f"{type(failure).__name__}: {failure}")
        return None

    def _ended(self, read: _Read, lost: UnreadablePage | None) -> None:
        """Report what can be computed now, if it is time to."""
        report: BlockLoad | None = None
        load = read.load
        with self._lock:
            self._reads.popleft()
            self._last_end = time.perf_counter()
            if read.is_dropped or self._closed.is_set():
                return
            if lost is not None:
                self._over = load.ticket
            self._num_unreported += 1
            if load.ready:
                self._latest = load
            if self._latest is not None and (not self._reads or self._num_unreported >= self._report_every):
                report, self._latest, self._num_unreported = self._latest, None, 0
                self._reported = (report.ticket, report.ready)
                if self._waits_since is not None:
                    self.totals.waited += self._last_end - self._waits_since
                    self._waits_since = None
        if lost is not None:
            LOGGER.warning("%s; a request that needs it computes it again", lost.why)
            self._report(load.ticket, 0, lost.why, lost.page)
        elif report is not None:
            self._report(report.ticket, report.ready, None, None)

    def give_up_late_reads(self) -> float | None:
        """Report reads that do not end. Return the seconds to the next look, or None if there is none to wait for."""
        with self._lock:
            awaited = [read for read in self._reads if not read.is_dropped]
            if not awaited:
                self._is_watched = False
                return None
            ticket = awaited[0].load.ticket
            left = max(awaited[0].asked_at, self._last_end) + GIVE_UP - time.perf_counter()
            if left > 0:
                return left
            for read in awaited:
                read.is_dropped = read.load.ticket == ticket
        self._report(ticket, 0, f"what it reads did not come from the disk in {GIVE_UP:.0f} s", None)
        return GIVE_UP


def _watch(watched: weakref.ref[DiskLoader[Any]], closed: threading.Event) -> None:
    """Look for late reads of a loader until it has none, is closed, or is dropped, which this must not prevent."""
    left: float | None = GIVE_UP
    while left is not None and not closed.wait(left):
        loader = watched()
        if loader is None:
            return
        left = loader.give_up_late_reads()
        del loader

"""The disk tier: a page file and a thread of its own, so that no step waits for a disk.

A store brings its bytes along, read in plan order when it was planned. Loads overtake stores, because a request waits
for them; stores and erasures keep their order. The thread reports every copy that ended, several at once if it can.
"""

from __future__ import annotations

import logging
import queue
import threading
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Protocol

import torch

from sluice.device.pages import DevicePages
from sluice.device.queues import DeviceQueue, Event, HostBuffers, wait_until
from sluice.storage.page_file_format import PageLost, split
from sluice.types import CopyDone, PageKey

LOGGER = logging.getLogger("sluice.disk")
REPORTED_AT_ONCE = 8
"""Most copies that are held back to be reported together."""
AHEAD = 8
"""Loads that the system is asked to fetch while an earlier one is checked: one reader alone leaves a disk idle."""
CLOSE_SECONDS = 2.0
"""How long `close` waits for stores that are on their way."""

Report = Callable[[tuple[CopyDone, ...]], None]


class WriteSource(Protocol):
    """The bytes of a store."""

    def parts(self) -> Sequence[memoryview]:
        """Return the bytes, once they have arrived."""
        ...

    def free(self) -> None:
        """Report that the bytes are no longer needed: they were written, or never will be."""
        ...


class ReadTarget(Protocol):
    """Where the bytes of a load go."""

    def parts(self) -> Sequence[memoryview]:
        """Return the memory to fill."""
        ...

    def finish(self) -> None:
        """Bring the filled memory to its page, and wait until it is there."""
        ...

    def free(self) -> None:
        """Report that the load has ended, well or not."""
        ...


@dataclass(frozen=True, slots=True)
class DiskWrite:
    """A copy to a page of the disk."""

    ticket: int
    page: int
    key: PageKey | None
    source: WriteSource


@dataclass(frozen=True, slots=True)
class DiskRead:
    """A copy from a page of the disk."""

    ticket: int
    page: int
    checksum: int
    target: ReadTarget


@dataclass(frozen=True, slots=True)
class Erase:
    """The end of what a page of the disk holds."""

    page: int


class PageStore(Protocol):
    """Where the pages of a disk tier are: a page file of its own, or those of other engines. One thread uses it."""

    @property
    def num_pages(self) -> int: ...

    @property
    def nbytes(self) -> int:
        """Bytes that it takes."""
        ...

    def write(self, page: int, key: PageKey | None, parts: Sequence[memoryview]) -> int:
        """Store a page, and return its checksum."""
        ...

    def read(self, page: int, parts: Sequence[memoryview]) -> int:
        """Load a page, and return its checksum."""
        ...

    def expect(self, page: int) -> None:
        """Announce that a page will be read."""
        ...

    def erase(self, page: int) -> None:
        """Empty a page."""
        ...

    def unlock(self) -> None:
        """Let another engine use it before it is closed."""
        ...

    def close(self) -> None: ...


class DiskTier:
    """Pages on a disk.

    Args:
        file: from now on used by this object's thread alone, and closed by it.
        report: called by that thread with copies that have ended.
    """

    def __init__(self, file: PageStore, report: Report) -> None:
        self.num_pages = file.num_pages
        self.nbytes = file.nbytes
        """Size of the file."""
        self._file = file
        self._report = report
        self._loads: deque[DiskRead] = deque()
        self._writes: deque[DiskWrite | Erase] = deque()
        self._changed = threading.Condition()
        self._is_open = True
        self._expected = 0
        """How many of the waiting loads, the first ones, the system was asked to fetch."""
        self._current: DiskWrite | DiskRead | Erase | None = None
        """The job that was taken last from the queues."""
        self._warned: set[str] = set()
        self._thread = threading.Thread(target=self._run, name="kv-disk", daemon=True)
        self._thread.start()

    def submit(self, *jobs: DiskWrite | DiskRead | Erase) -> None:
        """Queue copies, all or none, and return at once."""
        with self._changed:
            for job in jobs:
                if isinstance(job, DiskRead):
                    self._loads.append(job)
                else:
                    self._writes.append(job)
            self._changed.notify()

    def close(self) -> None:
        """Finish what is to be written, in `CLOSE_SECONDS` at most, and give up the file. May be called again.

        Stores that have not ended by then are dropped, and another engine may open the file at once. On a disk that
        hangs, the thread and the descriptor stay as they are until it responds. The file stays locked only for as long
        as pages that were forgotten are not erased: they must not be found again. In the tier's own thread, which a
        garbage collection may call it from, it returns at once, and the thread ends when everything is written.
        """
        with self._changed:
            self._is_open = False
            self._loads.clear()
            self._expected = 0
            self._changed.notify()
        if threading.current_thread() is self._thread:
            return
        self._thread.join(CLOSE_SECONDS)
        with self._changed:
            self._writes = deque(job for job in self._writes if isinstance(job, Erase))
            must_erase = bool(self._writes) or isinstance(self._current, Erase)
        if must_erase:
            self._thread.join(CLOSE_SECONDS)
        elif self._thread.is_alive():
            self._file.unlock()

    def _run(self) -> None:
        done: list[CopyDone] = []
        try:
            while (job := self._next(wait=not done)) is not None or done:
                if job is not None:
                    done += self._do(job)
                if done and (job is None or len(done) >= REPORTED_AT_ONCE):
                    self._send(tuple(done))
                    done = []
        finally:
            self._close_file()

    def _send(self, done: tuple[CopyDone, ...]) -> None:
        """Report copies, unless the tier is closed. The thread survives every exception."""
        if self._is_open:
            try:
                self._report(done)
            except Exception:
                LOGGER.exception("copies with the KV disk could not be reported: %s", done)

    def _close_file(self) -> None:
        try:
            self._file.close()
        except OSError as error:
            LOGGER.warning("the file of the KV disk could not be closed: %s", error.strerror)

    def _next(self, *, wait: bool) -> DiskWrite | DiskRead | Erase | None:
        """Return the next job; None if there is none, and `wait` is false or the tier is closed."""
        with self._changed:
            while wait and self._is_open and not self._loads and not self._writes:
                self._changed.wait()
            soon = [load.page for load in islice(self._loads, self._expected, AHEAD)]
            job: DiskWrite | DiskRead | Erase | None = None
            if self._loads:
                job = self._loads.popleft()
                self._expected += len(soon) - 1
            elif self._writes:
                job = self._writes.popleft()
            self._current = job
        for page in soon:
            self._file.expect(page)
        return job

    def _do(self, job: DiskWrite | DiskRead | Erase) -> list[CopyDone]:
        match job:
            case DiskWrite(ticket):
                return [CopyDone(ticket, *self._tried(lambda: self._store(job)))]
            case DiskRead(ticket):
                return [CopyDone(ticket, *self._tried(lambda: self._load(job)))]
            case Erase(page):
                self._tried(lambda: self._erase(page))
                return []

    def _tried(self, work: Callable[[], int]) -> tuple[int, str | None]:
        """Return the checksum that `work` gives, or 0 and why it failed. The thread survives every exception."""
        try:
            return work(), None
        except (OSError, PageLost, ValueError) as error:
            self._warn(type(error).__name__, error)
            return 0, str(error)
        except Exception as error:
            LOGGER.exception("a copy with the KV disk failed")
            return 0, f"{type(error).__name__}: {error}"

    def _warn(self, kind: str, error: Exception) -> None:
        """Log the first error of each kind: a full disk fails every store."""
        if kind not in self._warned and self._is_open:
            self._warned.add(kind)
            LOGGER.warning(
                "a copy with the KV disk failed (logged once): %s; what is missing is computed again",
                error,
            )

    def _store(self, store: DiskWrite) -> int:
        try:
            return self._file.write(store.page, store.key, store.source.parts())
        finally:
            store.source.free()

    def _load(self, load: DiskRead) -> int:
        try:
            checksum = self._file.read(load.page, load.target.parts())
            if checksum != load.checksum:
                raise PageLost(f"page {load.page} of the file has checksum {checksum:08x}, not {load.checksum:08x}")
            load.target.finish()
            return checksum
        finally:
            load.target.free()

    def _erase(self, page: int) -> int:
        self._file.erase(page)
        return 0


class PageBuffers:
    """Buffers of one page each between the device and a disk, reused for later copies. Any thread may take and give.

    There are as many as are in use at once, which the scheduler bounds by the copies it plans.

    Args:
        host_buffer: makes them, so that the device can copy from and to them.
    """

    def __init__(self, num_parts: int, part_bytes: int, host_buffer: HostBuffers) -> None:
        self._shape = (num_parts, part_bytes)
        self._host_buffer = host_buffer
        self._free: queue.SimpleQueue[torch.Tensor] = queue.SimpleQueue()

    def take(self) -> torch.Tensor:
        """Return a buffer [parts, part_bytes] uint8 of any content."""
        try:
            return self._free.get_nowait()
        except queue.Empty:
            with torch.inference_mode(False):
                return self._host_buffer(self._shape, torch.uint8)

    def give(self, buffer: torch.Tensor) -> None:
        """Return a buffer that is no longer in use."""
        self._free.put(buffer)


def _views(buffer: torch.Tensor) -> list[memoryview]:
    """Return the parts of a buffer [parts, part_bytes] uint8 on the host, as memory."""
    return split(buffer.flatten().numpy().data, buffer.shape[1])


@dataclass(frozen=True, slots=True)
class FromBuffer:
    """The source of a store: a buffer that the device fills."""

    buffer: torch.Tensor
    buffers: PageBuffers
    filled: Event

    def parts(self) -> Sequence[memoryview]:
        if not self.filled.query():
            wait_until(self.filled.query)
        return _views(self.buffer)

    def free(self) -> None:
        self.buffers.give(self.buffer)


@dataclass(frozen=True, slots=True)
class InPlace:
    """The target of a load on a CPU: the page itself."""

    pages: DevicePages
    page: int

    def parts(self) -> Sequence[memoryview]:
        return self.pages.views(self.page)

    def finish(self) -> None:
        """Return: the page was filled in place."""

    def free(self) -> None:
        """Return: no buffer was taken."""


@dataclass(slots=True)
class ThroughBuffer:
    """The target of a load on a GPU: a buffer, from which the page is copied."""

    pages: DevicePages
    page: int
    buffers: PageBuffers
    queue: DeviceQueue
    free_from: Event
    """The former use of the page, a store of it included, is over."""
    buffer: torch.Tensor | None = None

    def parts(self) -> Sequence[memoryview]:
        self.buffer = self.buffers.take()
        return _views(self.buffer)

    def finish(self) -> None:
        buffer = self.buffer
        assert buffer is not None, "nothing was read"
        self.queue.wait(self.free_from)
        self.queue.run(lambda: self.pages.copy_in(self.page, buffer))
        event = self.queue.record()
        if not event.query():
            wait_until(event.query)

    def free(self) -> None:
        if self.buffer is not None:
            self.buffers.give(self.buffer)

"""The disk tier: a page file and a thread of its own, so that no step waits for a disk.

Stores bring their bytes along, read in plan order by whoever plans them. Loads go past stores that wait: somebody waits
for them. Stores and erasures keep their order. The thread tells of every copy that ended, several at once if it can.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from itertools import islice

from sluice.tiers.disk_ends import Source, Target
from sluice.tiers.errors import PageLost
from sluice.tiers.page_file import PageFile
from sluice.types import CopyDone, PageKey

LOGGER = logging.getLogger("sluice.disk")
TOLD_AT_ONCE = 8
"""Copies that may wait for each other before they are told of."""
AHEAD = 8
"""Loads that the system is asked to fetch while an earlier one is checked: one reader alone leaves a disk idle."""
CLOSE_SECONDS = 2.0
"""How long `close` waits for stores that are on their way."""

Told = Callable[[tuple[CopyDone, ...]], None]


@dataclass(frozen=True, slots=True)
class Store:
    ticket: int
    slot: int
    key: PageKey | None
    source: Source


@dataclass(frozen=True, slots=True)
class Load:
    ticket: int
    slot: int
    checksum: int
    target: Target


@dataclass(frozen=True, slots=True)
class Erase:
    slot: int


class DiskTier:
    """Pages on a disk.

    Args:
        file: used by this object's thread alone from now on, and closed by it.
        told: called by that thread with copies that have ended.
    """

    def __init__(self, file: PageFile, told: Told) -> None:
        self.num_pages = file.layout.num_slots
        self.nbytes = file.layout.file_bytes
        """Of the file."""
        self._file = self.file = file
        self._told = told
        self._loads: deque[Load] = deque()
        self._writes: deque[Store | Erase] = deque()
        self._changed = threading.Condition()
        self._is_open = True
        self._expected = 0
        """Of the loads that wait, how many the system was asked to fetch: the first ones."""
        self._warned: set[str] = set()
        self._thread = threading.Thread(target=self._run, name="kv-disk", daemon=True)
        self._thread.start()

    def submit(self, *jobs: Store | Load | Erase) -> None:
        """Queue copies, all or none. Returns at once."""
        with self._changed:
            for job in jobs:
                if isinstance(job, Load):
                    self._loads.append(job)
                else:
                    self._writes.append(job)
            self._changed.notify()

    def close(self) -> None:
        """Finish what is to be written, in `CLOSE_SECONDS` at most, and close the file. Twice is once.

        Stores that were not begun by then are dropped: whoever opens the file next waits for one copy at most. On a
        disk that hangs, the thread and the file stay as they are until it comes back.
        """
        with self._changed:
            self._is_open = False
            self._loads.clear()
            self._expected = 0
            self._changed.notify()
        if threading.current_thread() is not self._thread:  # where a garbage collection may close an engine
            self._thread.join(CLOSE_SECONDS)
        with self._changed:
            self._writes = deque(job for job in self._writes if isinstance(job, Erase))

    def _run(self) -> None:
        done: list[CopyDone] = []
        try:
            while (job := self._next(wait=not done)) is not None or done:
                if job is not None:
                    done += self._do(job)
                if done and (job is None or len(done) >= TOLD_AT_ONCE):
                    self._tell(tuple(done))
                    done = []
        finally:
            self._close_file()

    def _tell(self, done: tuple[CopyDone, ...]) -> None:
        """Nobody listens when it is closed. Whatever goes wrong, the thread lives on."""
        if self._is_open:
            try:
                self._told(done)
            except Exception:
                LOGGER.exception("nobody could be told of copies with the KV disk: %s", done)

    def _close_file(self) -> None:
        try:
            self._file.close()
        except OSError as error:
            LOGGER.warning("the KV disk's file could not be closed well: %s", error.strerror)

    def _next(self, *, wait: bool) -> Store | Load | Erase | None:
        """The next job. None: there is none, and `wait` is false or none will come."""
        with self._changed:
            while wait and self._is_open and not self._loads and not self._writes:
                self._changed.wait()
            soon = [load.slot for load in islice(self._loads, self._expected, AHEAD)]
            job: Store | Load | Erase | None = None
            if self._loads:
                job = self._loads.popleft()
                self._expected += len(soon) - 1
            elif self._writes:
                job = self._writes.popleft()
        for slot in soon:
            self._file.expect(slot)
        return job

    def _do(self, job: Store | Load | Erase) -> list[CopyDone]:
        match job:
            case Store(ticket):
                return [CopyDone(ticket, *self._tried(lambda: self._store(job)))]
            case Load(ticket):
                return [CopyDone(ticket, *self._tried(lambda: self._load(job)))]
            case Erase(slot):
                self._tried(lambda: self._erase(slot))
                return []

    def _tried(self, work: Callable[[], int]) -> tuple[int, str | None]:
        """The checksum, or 0 and why there is none. Whatever goes wrong, the thread lives on."""
        try:
            return work(), None
        except (OSError, PageLost, ValueError) as error:
            self._warn(type(error).__name__, error)
            return 0, str(error)
        except Exception as error:
            LOGGER.exception("a copy with the KV disk failed")
            return 0, f"{type(error).__name__}: {error}"

    def _warn(self, kind: str, error: Exception) -> None:
        """Once for each kind: a full disk fails every store."""
        if kind not in self._warned:
            self._warned.add(kind)
            LOGGER.warning(
                "a copy with the KV disk failed (this is said once): %s; what is missing is computed again",
                error,
            )

    def _store(self, store: Store) -> int:
        try:
            return self._file.write(store.slot, store.key, store.source.parts())
        finally:
            store.source.free()

    def _load(self, load: Load) -> int:
        try:
            checksum = self._file.read(load.slot, load.target.parts())
            if checksum != load.checksum:
                raise PageLost(f"slot {load.slot} holds a page of checksum {checksum:08x}, not {load.checksum:08x}")
            load.target.finish()
            return checksum
        finally:
            load.target.free()

    def _erase(self, slot: int) -> int:
        self._file.erase(slot)
        return 0

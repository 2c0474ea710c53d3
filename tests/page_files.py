"""Small page files, and pages to put in."""

from __future__ import annotations

import hashlib
import random
import threading
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path

from sluice.storage.blocks import FileBlocks
from sluice.storage.checksums import Checksum, Differs, PageRun, best_checksum
from sluice.storage.opening import Opened, open_page_file
from sluice.storage.page_file import PageFile
from sluice.storage.page_file_format import FileLayout, PageGeometry, split
from sluice.types import PageKey

GEOMETRY = PageGeometry(
    model="abc",
    code="test",
    dtype="float32",
    layout="plain",
    page_size=4,
    num_layers=3,
    num_kv_heads=2,
    head_dim=8,
    part_bytes=4 * 2 * 8 * 4,
    checksum=best_checksum(),
)
SLOTS = 6
SIZE = FileLayout(GEOMETRY, SLOTS).file_bytes + 3000
"""Room for as many pages and not for one more."""


def opened(path: Path, geometry: PageGeometry = GEOMETRY, size: int = SIZE) -> Opened:
    return open_page_file(path, size, geometry)


def keys(tokens: Sequence[int], extra_key: str = "", page_size: int = GEOMETRY.page_size) -> list[PageKey]:
    """Those of the full pages of a prompt, in order."""
    found: list[PageKey] = []
    for start, end in pairwise(range(0, len(tokens) + 1, page_size)):
        parent = found[-1].digest if found else b""
        digest = hashlib.sha256(repr((extra_key, *tokens[:end])).encode()).digest()
        found.append(PageKey(digest, parent, tuple(tokens[start:end]), extra_key))
    return found


def page(seed: int, geometry: PageGeometry = GEOMETRY) -> list[memoryview]:
    """A page of noise, in the parts of its layers."""
    data = random.Random(seed).randbytes(geometry.page_bytes)
    return split(memoryview(bytearray(data)), geometry.part_bytes)


def blank(geometry: PageGeometry = GEOMETRY) -> list[memoryview]:
    return split(memoryview(bytearray(geometry.page_bytes)), geometry.part_bytes)


def load(file: PageFile, slot: int) -> bytes:
    parts = blank(file.layout.geometry)
    file.read(slot, parts)
    return b"".join(parts)


@dataclass
class FaultyBlocks:
    """A file whose writes stop after some bytes, as on a full disk or by a kill, and whose reads fail."""

    inner: FileBlocks
    room: int = 1 << 60
    """Bytes that are still written."""
    read_error: OSError | None = None
    write_error: OSError = field(default_factory=lambda: OSError(28, "No space left on device"))

    def read(self, buffers: Sequence[memoryview], offset: int) -> None:
        if self.read_error is not None:
            raise self.read_error
        self.inner.read(buffers, offset)

    def read_run(self, checksum: Checksum, run: PageRun) -> Differs | None:
        if self.read_error is not None:
            raise self.read_error
        return self.inner.read_run(checksum, run)

    def write(self, buffers: Sequence[memoryview | bytes], offset: int) -> None:
        data = b"".join(buffers)
        done, self.room = data[: self.room], max(0, self.room - len(data))
        if done:
            self.inner.write([done], offset)
        if len(done) < len(data):
            raise self.write_error

    def expect(self, offset: int, length: int) -> None:
        self.inner.expect(offset, length)

    def unlock(self) -> None:
        self.inner.unlock()

    def close(self) -> None:
        self.inner.close()


PATIENCE = 30.0
"""Seconds after which a disk that hangs goes on all the same, so that a failed test ends."""


@dataclass
class HungBlocks:
    """A file whose reads and writes wait until the disk comes back."""

    inner: FileBlocks
    came_back: threading.Event = field(default_factory=threading.Event)
    hangs: threading.Event = field(default_factory=threading.Event)
    """Whether a thread waits for it."""
    closed: threading.Event = field(default_factory=threading.Event)

    def read(self, buffers: Sequence[memoryview], offset: int) -> None:
        self._wait()
        self.inner.read(buffers, offset)

    def read_run(self, checksum: Checksum, run: PageRun) -> Differs | None:
        self._wait()
        return self.inner.read_run(checksum, run)

    def write(self, buffers: Sequence[memoryview | bytes], offset: int) -> None:
        self._wait()
        self.inner.write(buffers, offset)

    def expect(self, offset: int, length: int) -> None:
        self.inner.expect(offset, length)

    def unlock(self) -> None:
        self.inner.unlock()

    def close(self) -> None:
        self.inner.close()
        self.closed.set()

    def _wait(self) -> None:
        if not self.came_back.is_set():
            self.hangs.set()
            self.came_back.wait(PATIENCE)

"""Small page files, and pages to put in."""

from __future__ import annotations

import random
from array import array
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path

from sluice.pagefile.blocks import Blocks
from sluice.pagefile.entry import PageName, root_digest
from sluice.pagefile.layout import FileLayout, PageGeometry
from sluice.pagefile.page_file import Opened, PageFile, open_page_file
from sluice.pagefile.split import split

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
)
SLOTS = 6
SIZE = FileLayout(GEOMETRY, SLOTS).file_bytes + 4096


def opened(path: Path, geometry: PageGeometry = GEOMETRY, size: int = SIZE) -> Opened:
    return open_page_file(path, size, geometry)


def names(tokens: Sequence[int], extra_key: str = "", page_size: int = GEOMETRY.page_size) -> list[PageName]:
    """Those of the full pages of a prompt, in order."""
    parent, found = root_digest(extra_key), []
    starts = range(0, len(tokens) + 1, page_size)
    for start, end in pairwise(starts):
        found.append(PageName(extra_key, array("i", tokens[start:end]).tobytes(), parent))
        parent = found[-1].digest
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

    inner: Blocks
    room: int = 1 << 60
    """Bytes that are still written."""
    read_error: OSError | None = None
    write_error: OSError = field(default_factory=lambda: OSError(28, "No space left on device"))

    def read(self, buffers: Sequence[memoryview], offset: int) -> None:
        if self.read_error is not None:
            raise self.read_error
        self.inner.read(buffers, offset)

    def write(self, buffers: Sequence[memoryview | bytes], offset: int) -> None:
        data = b"".join(buffers)
        done, self.room = data[: self.room], max(0, self.room - len(data))
        if done:
            self.inner.write([done], offset)
        if len(done) < len(data):
            raise self.write_error

    def close(self) -> None:
        self.inner.close()

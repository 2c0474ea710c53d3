"""The checksums of stored pages, and the reads that compare them.

With the compiled library it is CRC-32C, which processors compute as fast as they read, and one call reads and checks
many pages. Without it, it is the CRC-32 of zlib, page by page. A page file says which one it has.
"""

from __future__ import annotations

import ctypes
import os
import zlib
from collections.abc import Sequence
from typing import ClassVar, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from sluice.kernels.cpu.abi import ReadOutcome
from sluice.kernels.cpu.library import KernelsUnavailable, Library
from sluice.kernels.cpu.stored_parts import StoredParts
from sluice.storage.page_file_format import PageLost


class PageRun(NamedTuple):
    """One layer of some pages: where it is in a file, and where it is to go."""

    offsets: npt.NDArray[np.int64]
    """[pages], where the keys of each begin; its values follow them."""
    expected: npt.NDArray[np.uint32]
    """[pages], the checksum of keys and values."""
    k: memoryview
    """[pages * bytes of a page's keys] uint8."""
    v: memoryview

    @property
    def part_bytes(self) -> int:
        """Bytes of the keys of a page."""
        return self.k.nbytes // len(self.offsets)


class Differs(NamedTuple):
    """A page that is not what was stored."""

    place: int
    """Index of the page in the run."""
    found: int
    """The checksum of what was read."""


class Readable(Protocol):
    """An open file, as checked reads use it."""

    descriptor: ctypes.c_int32
    """Negative once the file is closed."""

    def read(self, buffers: Sequence[memoryview], offset: int) -> None:
        """Fill the buffers: see `FileBlocks.read`."""
        ...


class Checksum(Protocol):
    """A kind of checksum."""

    name: ClassVar[str]

    def of(self, k: memoryview, v: memoryview) -> int:
        """Return the checksum of a layer's keys and values."""
        ...

    def read(self, file: Readable, run: PageRun) -> Differs | None:
        """Fill the memory of a run. Return the first page that is not what was stored, if there is one.

        Raises:
            PageLost: the file ends before that.
            OSError: the system's own reason.
        """
        ...


class Crc32:
    """CRC-32 by zlib."""

    name: ClassVar[str] = "crc32"

    def of(self, k: memoryview, v: memoryview) -> int:
        return zlib.crc32(v, zlib.crc32(k))

    def read(self, file: Readable, run: PageRun) -> Differs | None:
        size = run.part_bytes
        for index, (offset, expected) in enumerate(zip(run.offsets.tolist(), run.expected.tolist(), strict=True)):
            k, v = (memory[index * size : (index + 1) * size] for memory in (run.k, run.v))
            file.read([k, v], offset)
            if (found := self.of(k, v)) != expected:
                return Differs(index, found)
        return None


class Crc32c:
    """CRC-32C by the compiled library."""

    name: ClassVar[str] = "crc32c"

    def __init__(self, parts: StoredParts) -> None:
        self._parts = parts

    def of(self, k: memoryview, v: memoryview) -> int:
        return self._parts.crc32c(v, self._parts.crc32c(k))

    def read(self, file: Readable, run: PageRun) -> Differs | None:
        done = self._parts.read(file.descriptor, run.offsets, run.expected, run.k, run.v)
        match done.outcome:
            case ReadOutcome.ALL_READ:
                return None
            case ReadOutcome.DIFFERENT:
                return Differs(done.part, done.found)
            case ReadOutcome.FILE_ENDED:
                raise ended(file.descriptor.value, int(run.offsets[done.part]) + 2 * run.part_bytes)
            case ReadOutcome.READ_FAILED:
                raise OSError(done.error, os.strerror(done.error))


def ended(descriptor: int, wanted: int) -> PageLost:
    """Return the error for a file that ends before byte `wanted`."""
    return PageLost(f"the file ends at byte {os.fstat(descriptor).st_size}, before byte {wanted}")


def find_checksum(name: str) -> Checksum:
    """Return the checksum of this name.

    Raises:
        ValueError: there is none, or the compiled library that computes it is missing; in words that follow "it".
    """
    if name == Crc32.name:
        return Crc32()
    if name != Crc32c.name:
        raise ValueError(f"has checksums by {name}, which this version of Sluice does not know")
    try:
        return Crc32c(StoredParts(Library()))
    except KernelsUnavailable as error:
        raise ValueError(f"has checksums that only the compiled kernels compute, and {error}") from error


def best_checksum() -> str:
    """Return the name of the fastest checksum that can be computed here."""
    try:
        Library()
    except KernelsUnavailable:
        return Crc32.name
    return Crc32c.name

"""PageFile: a file of fixed size that holds pages of KV, found again by whoever opens it next.

A store erases the slot's entry in the index, writes the record and then the entry; a load compares the record with
the checksum of its entry. So whatever a killed process leaves behind, and whatever a disk does, a page is what was
stored or it is lost. Nothing is ever flushed to the medium on purpose: after a loss of power pages may be lost, too.
"""

from __future__ import annotations

import errno
import fcntl
import os
import stat
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from sluice.tiers import entry as entries
from sluice.tiers import header
from sluice.tiers.blocks import Blocks, FileBlocks
from sluice.tiers.checksums import Checksums, layer_checksum
from sluice.tiers.entry import Entry
from sluice.tiers.errors import PageFileError, PageFileInUse, PageLost
from sluice.tiers.layout import BLOCK, ENTRY_HEAD_BYTES, FileLayout, PageGeometry
from sluice.tiers.restore import restored
from sluice.types import PageKey, StoredPage

MODE = 0o600
INDEX_PIECE = 4096
"""Entries read at once."""
LOOK_SECONDS = 0.02
"""Between two looks whether a file is still in use."""


class PageFile:
    """An open page file. One thread at a time may use it, but for `read_layer`.

    Args:
        blocks: the file; closed with this object.
        index: what its index said.
    """

    def __init__(self, blocks: Blocks, layout: FileLayout, index: dict[int, Entry]) -> None:
        self.layout = layout
        self._blocks = blocks
        self._named = set(index)
        self._checksums = {slot: entry.checksums for slot, entry in index.items()}
        self._number = 1 + max((entry.number for entry in index.values()), default=0)

    def write(self, slot: int, key: PageKey | None, parts: Sequence[memoryview]) -> int:
        """Store a page. Returns its checksum.

        Args:
            key: whose page it is; None: nobody is to find it when the file is opened again.
            parts: its bytes: keys and values of each layer, in the order of the layout.

        Raises:
            OSError: the disk is full, or the system's own reason. The slot holds nothing then.
            ValueError: the key does not fit into the index.
        """
        self.erase(slot)
        found = Checksums.of(parts)
        line = None if key is None else entries.encode(Entry(key, found, self._number), self.layout.geometry)
        self._blocks.write(parts, self.layout.record_at(slot))
        if line is not None:
            self._blocks.write([line], self.layout.entry_at(slot))
            self._named.add(slot)
            self._number += 1
        self._checksums[slot] = found
        return found.whole

    def read(self, slot: int, parts: Sequence[memoryview]) -> int:
        """Load a page into buffers like those it was stored from. Returns its checksum.

        Raises:
            PageLost: the slot does not hold what was stored there; the buffers may hold anything.
            OSError: the system's own reason.
        """
        expected = self._expected(slot)
        self._blocks.read(parts, self.layout.record_at(slot))
        found = Checksums.of(parts)
        if found != expected:
            raise _lost(slot, found.whole, expected.whole)
        return found.whole

    def read_layer(self, slot: int, layer: int, k: memoryview, v: memoryview) -> None:
        """Load one layer of a page. Several threads may read at once, if no other writes to the slot.

        Raises:
            PageLost: as `read`.
            OSError: as `read`.
        """
        expected = self._expected(slot).layers[layer]
        self._blocks.read([k, v], self.layout.part_at(slot, layer))
        if (found := layer_checksum(k, v)) != expected:
            raise _lost(slot, found, expected)

    def _expected(self, slot: int) -> Checksums:
        checksums = self._checksums.get(slot)
        if checksums is None:
            raise PageLost(f"slot {slot} holds no page")
        return checksums

    def expect(self, slot: int) -> None:
        """Say that a slot will be read soon: the system may fetch it meanwhile."""
        self._blocks.expect(self.layout.record_at(slot), self.layout.geometry.page_bytes)

    def erase(self, slot: int) -> None:
        """Let a slot hold nothing, for whoever opens the file next, too.

        Raises:
            OSError: the system's own reason. It holds nothing for this process all the same.
        """
        self._checksums.pop(slot, None)
        if slot in self._named:
            self._blocks.write([bytes(ENTRY_HEAD_BYTES)], self.layout.entry_at(slot))
            self._named.discard(slot)

    def close(self) -> None:
        """Give the file free for others."""
        self._blocks.close()


@dataclass(frozen=True, slots=True)
class Opened:
    """A page file, and what was found in it."""

    file: PageFile
    pages: tuple[StoredPage, ...]
    """Parents before children."""
    discarded: str | None
    """Why what the file held before is not used, in words that follow "it"; None if all of it is, or it is new."""


def check_path(path: Path, patience: float = 0.0) -> None:
    """Find out whether a page file can be opened or made here, and leave it as it is, or empty.

    Args:
        patience: seconds to wait for an engine that uses the file: it may be closing.

    Raises:
        PageFileInUse: it uses it still.
        PageFileError: there can be no such file at this path.
    """
    os.close(_locked(path, os.O_RDWR | os.O_CREAT, patience))


def open_page_file(path: Path, size: int, geometry: PageGeometry, patience: float = 0.0) -> Opened:
    """Open a page file for this engine alone, or make one.

    Args:
        size: most bytes the file may take.
        patience: as for `check_path`.

    Raises:
        PageFileInUse: another engine uses it.
        PageFileError: there can be no such file at this path.
    """
    layout = FileLayout.within(geometry, size)
    descriptor = _locked(path, os.O_RDWR | os.O_CREAT, patience)
    try:
        with _refusing(path):
            blocks = FileBlocks(descriptor)
            discarded = _why_not(descriptor, path, layout)
            if discarded is None:
                index = dict(read_index(blocks, layout))
                return Opened(PageFile(blocks, layout, index), tuple(restored(index)), None)
            is_new = os.fstat(descriptor).st_size == 0
            _make(descriptor, path, layout)
            return Opened(PageFile(blocks, layout, {}), (), None if is_new else discarded)
    except BaseException:
        os.close(descriptor)
        raise


def read_index(blocks: Blocks, layout: FileLayout) -> Iterator[tuple[int, Entry]]:
    """The entries that are whole.

    Raises:
        PageLost: the file ends within the index.
        OSError: the system's own reason.
    """
    size = layout.geometry.entry_bytes
    for first in range(0, layout.num_slots, INDEX_PIECE):
        count = min(INDEX_PIECE, layout.num_slots - first)
        piece = bytearray(count * size)
        blocks.read([memoryview(piece)], layout.entry_at(first))
        for index in range(count):
            found = entries.decode(bytes(piece[index * size : (index + 1) * size]), layout.geometry)
            if found is not None:
                yield first + index, found


def open_to_look(path: Path) -> int:
    """A descriptor to read with, whoever uses the file.

    Raises:
        PageFileError: it cannot be opened.
    """
    try:
        return os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except OSError as error:
        raise PageFileError(f"{path} cannot be opened: {error.strerror}") from error


def _locked(path: Path, flags: int, patience: float) -> int:
    """
    Raises:
        PageFileInUse: another engine holds it.
        PageFileError: it cannot be opened, or is no file of ours.
    """
    try:
        descriptor = os.open(path, flags | os.O_CLOEXEC | os.O_NONBLOCK, MODE)
    except OSError as error:
        raise PageFileError(f"--kv-disk {path} cannot be opened: {error.strerror}") from error
    try:
        with _refusing(path):
            status = os.fstat(descriptor)
            if not stat.S_ISREG(status.st_mode):
                raise PageFileError(f"--kv-disk {path} must be a file, it is something else")
            if status.st_uid != os.geteuid():
                raise PageFileError(
                    f"--kv-disk {path} belongs to another user (uid {status.st_uid}), who could read it"
                )
            _check_ours(descriptor, path, status.st_size)
            _take(descriptor, path, patience)
            os.fchmod(descriptor, MODE)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


@contextmanager
def _refusing(path: Path) -> Iterator[None]:
    """What a disk says when a file is opened is said with the file's name."""
    try:
        yield
    except (OSError, PageLost) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise PageFileError(f"--kv-disk {path} cannot be used: {reason}") from error


def _check_ours(descriptor: int, path: Path, size: int) -> None:
    if size and not header.is_ours(os.pread(descriptor, BLOCK, 0)):
        raise PageFileError(
            f"--kv-disk {path} is not a page file, and would be overwritten; name another path, or remove it"
        )


def _take(descriptor: int, path: Path, patience: float) -> None:
    gives_up = time.monotonic() + patience
    while not _lock(descriptor, path):
        if time.monotonic() >= gives_up:
            waited = f", and was so for {patience:g} s" if patience else ""
            raise PageFileInUse(f"--kv-disk {path} is in use by another engine{waited}")
        time.sleep(LOOK_SECONDS)


def _lock(descriptor: int, path: Path) -> bool:
    """Whether it is ours now."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno not in (errno.EWOULDBLOCK, errno.EACCES):
            raise PageFileError(f"--kv-disk {path} cannot be locked: {error.strerror}") from error
        return False
    return True


def _why_not(descriptor: int, path: Path, layout: FileLayout) -> str | None:
    """Why a file's pages cannot be used; None if they can."""
    try:
        found = header.decode(os.pread(descriptor, BLOCK, 0))
    except ValueError as error:
        return str(error)
    difference = layout.geometry.difference(found.geometry)
    if difference is not None:
        return f"holds {difference}"
    if found.num_slots != layout.num_slots:
        return f"has room for {found.num_slots} pages, not {layout.num_slots}"
    size = os.fstat(descriptor).st_size
    if size < layout.file_bytes:
        return f"was cut off at byte {size} of {layout.file_bytes}"
    return None


def _make(descriptor: int, path: Path, layout: FileLayout) -> None:
    """
    Raises:
        PageFileError: there is no room for it.
    """
    try:
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, header.UNFINISHED, 0)
        os.posix_fallocate(descriptor, 0, layout.file_bytes)
        os.pwrite(descriptor, header.encode(layout), 0)
    except OSError as error:
        with suppress(OSError):
            os.ftruncate(descriptor, 0)
        raise PageFileError(
            f"--kv-disk {path} cannot be made {layout.file_bytes} bytes large (--kv-disk-bytes): {error.strerror}"
        ) from error


def _lost(slot: int, found: int, expected: int) -> PageLost:
    return PageLost(f"slot {slot} holds a page of checksum {found:08x}, {expected:08x} was stored")

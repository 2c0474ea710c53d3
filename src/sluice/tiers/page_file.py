"""PageFile: a file of fixed size that holds pages of KV, so that a later process finds them again.

A store erases the page's entry in the index, writes the record and then the entry. A load compares the record with the
checksum of its entry. So a page is what was stored or it is lost, even if a process is killed or a
disk returns wrong bytes. The file is never flushed to the medium on purpose: after a loss of power pages may be lost.
"""

from __future__ import annotations

import errno
import fcntl
import os
import stat
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from sluice.tiers.blocks import Blocks, FileBlocks
from sluice.tiers.format import (
    BLOCK,
    ENTRY_HEAD_BYTES,
    UNFINISHED,
    Checksums,
    Entry,
    FileLayout,
    PageFileError,
    PageFileInUse,
    PageGeometry,
    PageLost,
    decode_entry,
    decode_header,
    encode_entry,
    encode_header,
    is_page_file,
    layer_checksum,
)
from sluice.types import PageKey, StoredPage

MODE = 0o600
INDEX_PIECE = 4096
"""Entries read at once."""
RETRY_SECONDS = 0.02
"""Time between two attempts to lock a file that is in use."""


class PageFile:
    """An open page file. One thread at a time may use it, but for `read_layer`.

    Args:
        blocks: the file; closed with this object.
        index: the entries of its index, by page.
    """

    def __init__(self, blocks: Blocks, layout: FileLayout, index: dict[int, Entry]) -> None:
        self.layout = layout
        self._blocks = blocks
        self._named = set(index)
        self._checksums = {page: entry.checksums for page, entry in index.items()}
        self._number = 1 + max((entry.number for entry in index.values()), default=0)

    def write(self, page: int, key: PageKey | None, parts: Sequence[memoryview]) -> int:
        """Store a page and return its checksum.

        Args:
            key: names the page when the file is opened again; None: it is not to be found then.
            parts: its bytes: keys and values of each layer, in the order of the layout.

        Raises:
            OSError: the disk is full, or the system's own reason. The page is empty then.
            ValueError: the key does not fit into the index.
        """
        self.erase(page)
        found = Checksums.of(parts)
        line = None if key is None else encode_entry(Entry(key, found, self._number), self.layout.geometry)
        self._blocks.write(parts, self.layout.record_at(page))
        if line is not None:
            self._blocks.write([line], self.layout.entry_at(page))
            self._named.add(page)
            self._number += 1
        self._checksums[page] = found
        return found.whole

    def read(self, page: int, parts: Sequence[memoryview]) -> int:
        """Load a page into buffers like those it was stored from, and return its checksum.

        Raises:
            PageLost: the file does not hold what was stored there; the buffers may hold anything.
            OSError: the system's own reason.
        """
        expected = self._expected(page)
        self._blocks.read(parts, self.layout.record_at(page))
        found = Checksums.of(parts)
        if found != expected:
            raise _lost(page, found.whole, expected.whole)
        return found.whole

    def read_layer(self, page: int, layer: int, k: memoryview, v: memoryview) -> None:
        """Load one layer of a page. Several threads may read at once, if no other thread writes to the page.

        Raises:
            PageLost: as `read`.
            OSError: as `read`.
        """
        expected = self._expected(page).layers[layer]
        self._blocks.read([k, v], self.layout.part_at(page, layer))
        if (found := layer_checksum(k, v)) != expected:
            raise _lost(page, found, expected)

    def _expected(self, page: int) -> Checksums:
        checksums = self._checksums.get(page)
        if checksums is None:
            raise PageLost(f"page {page} of the file is empty")
        return checksums

    def expect(self, page: int) -> None:
        """Announce that a page will be read, so that the system may fetch it meanwhile."""
        self._blocks.expect(self.layout.record_at(page), self.layout.geometry.page_bytes)

    def erase(self, page: int) -> None:
        """Empty a page, for later processes as well.

        Raises:
            OSError: the system's own reason. The page is empty for this process all the same.
        """
        self._checksums.pop(page, None)
        if page in self._named:
            self._blocks.write([bytes(ENTRY_HEAD_BYTES)], self.layout.entry_at(page))
            self._named.discard(page)

    def close(self) -> None:
        """Close the file, so that another engine may use it."""
        self._blocks.close()


@dataclass(frozen=True, slots=True)
class Opened:
    """A page file and its contents."""

    file: PageFile
    pages: tuple[StoredPage, ...]
    """Parents before children."""
    discarded: str | None
    """Why the former contents are not used, in words that follow "it"; None if they are, or the file is new."""


def check_path(path: Path, patience: float = 0.0) -> None:
    """Check that a page file can be opened or made here, and leave it as it is, or empty.

    Args:
        patience: seconds to wait for an engine that uses the file: it may be closing.

    Raises:
        PageFileInUse: the other engine still uses it.
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
    """Yield the whole entries of the index, each with its page.

    Raises:
        PageLost: the file ends within the index.
        OSError: the system's own reason.
    """
    size = layout.geometry.entry_bytes
    for first in range(0, layout.num_pages, INDEX_PIECE):
        count = min(INDEX_PIECE, layout.num_pages - first)
        piece = bytearray(count * size)
        blocks.read([memoryview(piece)], layout.entry_at(first))
        for index in range(count):
            found = decode_entry(bytes(piece[index * size : (index + 1) * size]), layout.geometry)
            if found is not None:
                yield first + index, found


def open_to_look(path: Path) -> int:
    """Return a descriptor to read with, even while an engine uses the file.

    Raises:
        PageFileError: it cannot be opened.
    """
    try:
        return os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except OSError as error:
        raise PageFileError(f"{path} cannot be opened: {error.strerror}") from error


def _locked(path: Path, flags: int, patience: float) -> int:
    """Open a file and lock it.

    Raises:
        PageFileInUse: another engine uses it.
        PageFileError: it cannot be opened, or is no page file of this user.
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
    """Raise PageFileError, with the file's name, in place of what the system raises."""
    try:
        yield
    except (OSError, PageLost) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise PageFileError(f"--kv-disk {path} cannot be used: {reason}") from error


def _check_ours(descriptor: int, path: Path, size: int) -> None:
    if size and not is_page_file(os.pread(descriptor, BLOCK, 0)):
        raise PageFileError(
            f"--kv-disk {path} is not a page file, and would be overwritten; name another path, or remove it"
        )


def _take(descriptor: int, path: Path, patience: float) -> None:
    deadline = time.monotonic() + patience
    while not _lock(descriptor, path):
        if time.monotonic() >= deadline:
            waited = f", and was so for {patience:g} s" if patience else ""
            raise PageFileInUse(f"--kv-disk {path} is in use by another engine{waited}")
        time.sleep(RETRY_SECONDS)


def _lock(descriptor: int, path: Path) -> bool:
    """Try to lock a file. Return whether this process holds the lock now."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno not in (errno.EWOULDBLOCK, errno.EACCES):
            raise PageFileError(f"--kv-disk {path} cannot be locked: {error.strerror}") from error
        return False
    return True


def _why_not(descriptor: int, path: Path, layout: FileLayout) -> str | None:
    """Return why a file's pages cannot be used; None if they can."""
    try:
        found = decode_header(os.pread(descriptor, BLOCK, 0))
    except ValueError as error:
        return str(error)
    difference = layout.geometry.difference(found.geometry)
    if difference is not None:
        return f"holds {difference}"
    if found.num_pages != layout.num_pages:
        return f"has room for {found.num_pages} pages, not {layout.num_pages}"
    size = os.fstat(descriptor).st_size
    if size < layout.file_bytes:
        return f"was cut off at byte {size} of {layout.file_bytes}"
    return None


def _make(descriptor: int, path: Path, layout: FileLayout) -> None:
    """Make an empty page file.

    Raises:
        PageFileError: there is no room for it.
    """
    try:
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, UNFINISHED, 0)
        os.posix_fallocate(descriptor, 0, layout.file_bytes)
        os.pwrite(descriptor, encode_header(layout), 0)
    except OSError as error:
        with suppress(OSError):
            os.ftruncate(descriptor, 0)
        raise PageFileError(
            f"--kv-disk {path} cannot be made {layout.file_bytes} bytes large (--kv-disk-bytes): {error.strerror}"
        ) from error


def _lost(page: int, found: int, expected: int) -> PageLost:
    return PageLost(f"page {page} of the file has checksum {found:08x}, {expected:08x} was stored")


def restored(entries: Mapping[int, Entry]) -> list[StoredPage]:
    """Return the pages of an index that a prefix tree can hold, parents before children, otherwise the oldest first.

    A page stored twice counts once, from its younger store. A page whose parent is missing does not count.
    """
    pages: dict[bytes, int] = {}
    for page in sorted(entries, key=lambda page: entries[page].number):
        pages[entries[page].key.digest] = page
    children: dict[bytes, list[int]] = {}
    for page in pages.values():
        children.setdefault(entries[page].key.parent, []).append(page)
    pending = sorted(children.get(b"", ()), key=lambda page: entries[page].number)
    found: list[StoredPage] = []
    for page in pending:  # it grows meanwhile
        entry = entries[page]
        found.append(StoredPage(page, entry.key, entry.checksums.whole))
        pending += children.get(entry.key.digest, ())
    return found

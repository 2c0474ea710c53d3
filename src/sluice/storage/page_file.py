"""PageFile: a file of fixed size that holds pages of KV, so that a later process finds them again.

A store erases the page's entry in the index, writes the page and then the entry. A load compares each layer of the page
with its checksum in the entry. So a page is what was stored or it is lost, even if a process is killed or a
disk returns wrong bytes. The file is never flushed to the medium on purpose: after a loss of power pages may be lost.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from sluice.storage.blocks import FileBlocks
from sluice.storage.checksums import PageRun, find_checksum
from sluice.storage.page_file_format import (
    ENTRY_HEAD_BYTES,
    Checksums,
    FileLayout,
    IndexEntry,
    PageLost,
    decode_entry,
    encode_entry,
)
from sluice.types import PageKey, StoredPage

INDEX_PIECE = 4096
"""Entries read at once."""
EMPTY_HEAD = bytes(ENTRY_HEAD_BYTES)
"""The beginning of an empty entry."""


class PageFile:
    """An open page file. One thread at a time may use it, but for `read_layer`.

    Args:
        blocks: the file; closed with this object.
        index: the entries of its index, by page.

    Raises:
        ValueError: the checksums of this layout cannot be computed here; in words that follow "it".
    """

    def __init__(self, blocks: FileBlocks, layout: FileLayout, index: dict[int, IndexEntry]) -> None:
        self.layout = layout
        self._blocks = blocks
        self._named = set(index)
        self._checksum = find_checksum(layout.geometry.checksum)
        self._stored = np.zeros(layout.num_pages, dtype=np.bool_)
        """Whether each page holds something."""
        self._expected = np.zeros((layout.num_pages, layout.geometry.num_layers), dtype=np.uint32)
        """Checksums of the layers of each page."""
        for page, entry in index.items():
            self._set(page, entry.checksums)
        self._number = 1 + max((entry.number for entry in index.values()), default=0)

    @property
    def num_pages(self) -> int:
        return self.layout.num_pages

    @property
    def nbytes(self) -> int:
        """Size of the file."""
        return self.layout.file_bytes

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
        found = Checksums(tuple(self._checksum.of(k, v) for k, v in zip(parts[::2], parts[1::2], strict=True)))
        line = None if key is None else encode_entry(IndexEntry(key, found, self._number), self.layout.geometry)
        for first, offset in self._pieces(page):
            self._blocks.write(parts[first : first + self._parts_at_once], offset)
        if line is not None:
            self._blocks.write([line], self.layout.entry_at(page))
            self._named.add(page)
            self._number += 1
        self._set(page, found)
        return found.whole

    def read(self, page: int, parts: Sequence[memoryview]) -> int:
        """Load a page into buffers like those it was stored from, and return its checksum.

        Raises:
            PageLost: the file does not hold what was stored there; the buffers may hold anything.
            OSError: the system's own reason.
        """
        for layer in range(self.layout.geometry.num_layers):
            self.read_layer([page], layer, parts[2 * layer], parts[2 * layer + 1])
        return Checksums(tuple(self._expected[page].tolist())).whole

    def read_layer(self, pages: Sequence[int], layer: int, k: memoryview, v: memoryview) -> None:
        """Load one layer of some pages. Several threads may read at once, if no other thread writes to the pages.

        Args:
            k: writable memory of the keys of all of them, one page after the other.
            v: that of their values.

        Raises:
            PageLost: as `read`. It names the first page that is lost.
            OSError: as `read`.
        """
        numbers = np.asarray(pages, dtype=np.int64)
        if not self._stored[numbers].all():
            empty = next(page for page in pages if not self._stored[page])
            raise PageLost(f"page {empty} of the file is empty", empty)
        run = PageRun(self.layout.parts_at(numbers, layer), self._expected[numbers, layer], k, v)
        differs = self._blocks.read_run(self._checksum, run)
        if differs is not None:
            page, stored = pages[differs.place], run.expected[differs.place]
            raise PageLost(f"page {page} of the file has checksum {differs.found:08x}, {stored:08x} was stored", page)

    def expect(self, page: int) -> None:
        """Announce that a page will be read, so that the system may fetch it meanwhile."""
        for _, offset in self._pieces(page):
            self._blocks.expect(offset, self._parts_at_once * self.layout.geometry.part_bytes)

    def erase(self, page: int) -> None:
        """Empty a page, for later processes as well.

        Raises:
            OSError: the system's own reason. The page is empty for this process all the same.
        """
        self._stored[page] = False
        if page in self._named:
            self._blocks.write([EMPTY_HEAD], self.layout.entry_at(page))
            self._named.discard(page)

    def unlock(self) -> None:
        """Let another engine use the file before this object is closed, because a read or write does not end.

        What a write under way still changes is noticed: every engine compares what it loads with its checksum.
        """
        self._blocks.unlock()

    def close(self) -> None:
        """Close the file, so that another engine may use it."""
        self._blocks.close()

    def _set(self, page: int, checksums: Checksums) -> None:
        self._expected[page] = checksums.layers
        self._stored[page] = True

    @property
    def _parts_at_once(self) -> int:
        """Parts of a page that are one behind the other: those of a layer, or all, where a page is an extent."""
        geometry = self.layout.geometry
        return 2 * geometry.num_layers if geometry.extent_pages == 1 else 2

    def _pieces(self, page: int) -> Iterator[tuple[int, int]]:
        """Return where the pieces of a page are: the number of the first part of each, and its offset."""
        first = np.arange(0, 2 * self.layout.geometry.num_layers, self._parts_at_once)
        offsets = self.layout.parts_at(np.array(page), first // 2)
        return zip(first.tolist(), offsets.tolist(), strict=True)


class Index(NamedTuple):
    """The index of a page file."""

    entries: dict[int, IndexEntry]
    """Whole entries, by page."""
    damaged: tuple[int, ...]
    """Pages whose entry is neither whole nor empty. A process that is killed while it stores leaves one at most."""


def read_index(blocks: FileBlocks, layout: FileLayout) -> Index:
    """Return the index of a page file.

    Raises:
        PageLost: the file ends within the index.
        OSError: the system's own reason.
    """
    size = layout.geometry.entry_bytes
    entries: dict[int, IndexEntry] = {}
    damaged: list[int] = []
    for first in range(0, layout.num_pages, INDEX_PIECE):
        count = min(INDEX_PIECE, layout.num_pages - first)
        piece = bytearray(count * size)
        blocks.read([memoryview(piece)], layout.entry_at(first))
        for page in range(first, first + count):
            data = bytes(piece[(page - first) * size : (page - first + 1) * size])
            found = decode_entry(data, layout.geometry)
            if found is not None:
                entries[page] = found
            elif data[:ENTRY_HEAD_BYTES] != EMPTY_HEAD:
                damaged.append(page)
    return Index(entries, tuple(damaged))


def restored(entries: Mapping[int, IndexEntry]) -> list[StoredPage]:
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

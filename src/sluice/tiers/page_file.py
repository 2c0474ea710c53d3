"""PageFile: a file of fixed size that holds pages of KV, so that a later process finds them again.

A store erases the page's entry in the index, writes the record and then the entry. A load compares the record with the
checksum of its entry. So a page is what was stored or it is lost, even if a process is killed or a
disk returns wrong bytes. The file is never flushed to the medium on purpose: after a loss of power pages may be lost.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from sluice.tiers.blocks import Blocks
from sluice.tiers.format import (
    ENTRY_HEAD_BYTES,
    Checksums,
    Entry,
    FileLayout,
    PageLost,
    decode_entry,
    encode_entry,
    layer_checksum,
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


class Index(NamedTuple):
    """The index of a page file."""

    entries: dict[int, Entry]
    """Whole entries, by page."""
    damaged: tuple[int, ...]
    """Pages whose entry is neither whole nor empty. A process that is killed while it stores leaves one at most."""


def read_index(blocks: Blocks, layout: FileLayout) -> Index:
    """Return the index of a page file.

    Raises:
        PageLost: the file ends within the index.
        OSError: the system's own reason.
    """
    size = layout.geometry.entry_bytes
    entries: dict[int, Entry] = {}
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

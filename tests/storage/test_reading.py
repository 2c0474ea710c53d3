"""Pages that are read many at once, against the same pages read one by one, slowly."""

from __future__ import annotations

import os
import random
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest

from compiled import library
from page_files import GEOMETRY, opened, page
from sluice.kernels.cpu.stored_parts import StoredParts
from sluice.storage.blocks import FileBlocks
from sluice.storage.checksums import Crc32, Crc32c
from sluice.storage.page_file import PageFile
from sluice.storage.page_file_format import BLOCK, EXTENT_BYTES, FileLayout, PageGeometry, PageLost

PARTS = StoredParts(library())
SIZES = (*range(70), 191, 192, 193, 1023, 3071, 3072, 3073, 3264, 10_000)


def slow_crc32c(data: bytes, crc: int = 0) -> int:
    """CRC-32C as it is defined, a bit at a time."""
    crc ^= 0xFFFFFFFF
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = crc >> 1 ^ (0x82F63B78 if crc & 1 else 0)
    return crc ^ 0xFFFFFFFF


@pytest.mark.parametrize("portable", [False, True])
def test_crc32c_is_what_the_definition_says(portable: bool) -> None:
    """Streams that are joined wrongly: a file that no other machine can read, or errors that cancel each other."""
    assert PARTS.crc32c(memoryview(b"123456789"), portable=portable) == 0xE3069283
    data = random.Random(0).randbytes(max(SIZES) + 3)
    for size in SIZES:
        piece = data[3 : 3 + size]  # not aligned
        assert PARTS.crc32c(memoryview(piece), portable=portable) == slow_crc32c(piece), size
        before = PARTS.crc32c(memoryview(data[:3]), portable=portable)
        assert PARTS.crc32c(memoryview(piece), before, portable=portable) == slow_crc32c(data[: 3 + size]), size


def geometries() -> Iterator[PageGeometry]:
    """Extents of many pages, of three, of one, and pages of which a layer is read in pieces."""
    for part_bytes in (24, EXTENT_BYTES // 6, EXTENT_BYTES // 2, EXTENT_BYTES + 8):
        for checksum in (Crc32.name, Crc32c.name):
            yield replace(GEOMETRY, part_bytes=part_bytes, num_layers=2, checksum=checksum)


def name_of(geometry: PageGeometry) -> str:
    return f"{geometry.part_bytes} {geometry.checksum}"


each_geometry = pytest.mark.parametrize("geometry", list(geometries()), ids=name_of)


class Filled:
    """A page file with seven pages, and what is in it."""

    def __init__(self, path: Path, geometry: PageGeometry) -> None:
        self.geometry = geometry
        self.layout = FileLayout(geometry, 7)
        self.file: PageFile = opened(path, geometry, self.layout.file_bytes + BLOCK).file
        self.layout = self.file.layout
        self.pages = [page(number, geometry) for number in range(7)]
        for number, parts in enumerate(self.pages):
            self.file.write(number, None, parts)

    def read(self, pages: Sequence[int], layer: int) -> tuple[bytes, bytes]:
        k, v = (memoryview(bytearray(len(pages) * self.geometry.part_bytes)) for _ in range(2))
        self.file.read_layer(pages, layer, k, v)
        return bytes(k), bytes(v)

    def stored(self, pages: Sequence[int], layer: int) -> tuple[bytes, bytes]:
        k, v = (b"".join(self.pages[number][2 * layer + part] for number in pages) for part in range(2))
        return k, v


@each_geometry
def test_a_layer_of_any_pages_comes_in_their_order(tmp_path: Path, geometry: PageGeometry) -> None:
    """Pages that lie side by side are read at once: those at the end of an extent, in another order or read twice are
    not the next ones."""
    filled, draw = Filled(tmp_path / "pages", geometry), random.Random(0)
    for pages in ([*range(7)], [6, 5, 4], [2, 3, 5, 6], [0, 0, 1], *(draw.choices(range(7), k=5) for _ in range(4))):
        for layer in range(2):
            assert filled.read(pages, layer) == filled.stored(pages, layer)
    filled.file.close()


@each_geometry
def test_a_flipped_bit_is_reported_with_its_page(tmp_path: Path, geometry: PageGeometry) -> None:
    """A request that goes on with wrong KV; or another page that is computed again, and the damaged one stays."""
    filled, draw = Filled(tmp_path / "pages", geometry), random.Random(0)
    for lost in (0, 3, 6):
        layer = draw.randrange(2)
        at = filled.layout.part_at(lost, layer) + draw.randrange(2 * geometry.part_bytes)
        flip(tmp_path / "pages", at)
        with pytest.raises(PageLost, match=f"page {lost} of the file has checksum") as caught:
            filled.read([1, 2, 3, 0, 6], layer)
        assert caught.value.page == lost
        assert filled.read([1, 2, 5], layer) == filled.stored([1, 2, 5], layer)
        flip(tmp_path / "pages", at)
    filled.file.close()


@each_geometry
def test_a_file_that_ends_early_or_is_closed_fails_a_read(tmp_path: Path, geometry: PageGeometry) -> None:
    """What the memory held before, taken for KV; a read in a file that has the closed one's number by then."""
    filled = Filled(tmp_path / "pages", geometry)
    os.truncate(tmp_path / "pages", filled.layout.part_at(6, 1) + geometry.part_bytes + 3)
    with pytest.raises(PageLost, match="the file ends at byte"):
        filled.read([4, 5, 6], 1)
    assert filled.read([4, 5], 1) == filled.stored([4, 5], 1)
    filled.file.unlock()
    with pytest.raises(OSError, match="given to another engine"):
        filled.read([4], 1)
    filled.file.close()
    with pytest.raises(OSError, match="given to another engine"):
        filled.read([4], 1)


def test_a_read_looks_at_the_descriptor_before_each_call_of_the_system(tmp_path: Path) -> None:
    """A read that goes on after its file was closed, in another file of the same number."""
    filled = Filled(tmp_path / "pages", replace(GEOMETRY, checksum=Crc32c.name))
    blocks = filled.file._blocks
    assert isinstance(blocks, FileBlocks)
    blocks.descriptor.value = -1
    with pytest.raises(OSError, match="Bad file descriptor"):
        filled.read([0], 0)


@pytest.mark.parametrize("num_pages", [1, 2, 3, 4, 5, 7, 12])
@pytest.mark.parametrize("part_bytes", [24, 43_690, EXTENT_BYTES])
def test_no_two_layers_of_pages_share_a_byte_of_the_file(num_pages: int, part_bytes: int) -> None:
    """A store that damages another page; a file that is larger than it was allowed to be."""
    layout = FileLayout(replace(GEOMETRY, part_bytes=part_bytes), num_pages)
    begins = sorted(layout.part_at(number, layer) for number in range(num_pages) for layer in range(3))
    assert begins[0] == layout.extents_at
    assert all(after - before >= 2 * part_bytes for before, after in pairwise(begins))
    assert begins[-1] + 2 * part_bytes <= layout.file_bytes
    for size in range(layout.file_bytes, layout.file_bytes + 3 * BLOCK, 777):
        found = FileLayout.within(layout.geometry, size + BLOCK)
        assert num_pages <= found.num_pages
        assert found.file_bytes <= size + BLOCK


def flip(path: Path, at: int) -> None:
    with path.open("r+b") as file:
        file.seek(at)
        (byte,) = file.read(1)
        file.seek(at)
        file.write(bytes([byte ^ 32]))

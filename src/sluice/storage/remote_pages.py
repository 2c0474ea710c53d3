"""RemotePages: pages in the page files of other engines, as a disk tier reads them.

The files are read while their engines write to them. What is read counts only if its checksum is that of the store, so
a page that was overwritten, or is being written, is lost, and computed again.
"""

from __future__ import annotations

import os
import stat
from collections import OrderedDict
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from sluice.storage.blocks import FileBlocks
from sluice.storage.checksums import find_checksum
from sluice.storage.opening import open_to_look
from sluice.storage.page_file_format import (
    BLOCK,
    Checksums,
    FileLayout,
    PageFileError,
    PageGeometry,
    PageLost,
    decode_header,
)
from sluice.types import PageKey, StoredPage

MAX_FILES = 16
"""Files that are kept open."""


class _Place(NamedTuple):
    """Where a page is."""

    path: Path
    page: int
    """The page's number in that file."""
    checksum: int


class _OpenFile(NamedTuple):
    blocks: FileBlocks
    layout: FileLayout


class RemotePages:
    """Pages of other engines' page files: a `PageStore` that cannot be written to.

    Args:
        geometry: that the files must have.
        num_pages: pages that the tier has.
        folder: the files must be in it.

    Raises:
        ValueError: the checksums of this layout cannot be computed here.
    """

    nbytes = 0
    """The pages take no room of their own."""

    def __init__(self, geometry: PageGeometry, num_pages: int, folder: Path) -> None:
        self.num_pages = num_pages
        self._geometry = geometry
        self._checksum = find_checksum(geometry.checksum)
        self._folder = folder
        self._places: dict[int, _Place] = {}
        self._files: OrderedDict[Path, _OpenFile] = OrderedDict()
        """Open files, the one used last at the end."""

    def check(self, source: str) -> Path:
        """Return the path of a source. Nothing is read.

        Raises:
            PageFileError: it is not a file's name in the folder.
        """
        path = Path(source)
        if path.parent != self._folder or path.name in ("", ".", ".."):
            raise PageFileError(f"pages of {source} are not taken: it does not lie in {self._folder}")
        return path

    def place(self, page: int, path: Path, stored: StoredPage) -> None:
        """Say where a page of the tier is, from any thread. No load of an earlier content may be under way."""
        self._places[page] = _Place(path, stored.page, stored.checksum)

    def read(self, page: int, parts: Sequence[memoryview]) -> int:
        place = self._places.get(page)
        if place is None:
            raise PageLost(f"page {page} of the tier was never given")
        file = self._file(place.path)
        try:
            return self._read(file, place, parts)
        except (PageLost, OSError):
            self._forget(place.path)  # it may have been made anew meanwhile, with another layout
            raise

    def _read(self, file: _OpenFile, place: _Place, parts: Sequence[memoryview]) -> int:
        if not 0 <= place.page < file.layout.num_pages:
            raise PageLost(f"{place.path} has {file.layout.num_pages} pages, and no page {place.page}")
        layers: list[int] = []
        for layer, (k, v) in enumerate(zip(parts[::2], parts[1::2], strict=True)):
            file.blocks.read([k, v], file.layout.part_at(place.page, layer))
            layers.append(self._checksum.of(k, v))
        checksum = Checksums(tuple(layers)).whole
        if checksum != place.checksum:
            raise PageLost(f"page {place.page} of {place.path} is not what was stored there")
        return checksum

    def write(self, page: int, key: PageKey | None, parts: Sequence[memoryview]) -> int:
        raise AssertionError(f"page {page} is another engine's")

    def expect(self, page: int) -> None:
        """Return: to announce a read, the file would have to be opened."""

    def erase(self, page: int) -> None:
        """Return: the page stays where it is, and the tier's page is given another one before it is read again."""

    def unlock(self) -> None:
        """Return: files of others are not locked."""

    def close(self) -> None:
        """Close the files."""
        while self._files:
            self._files.popitem()[1].blocks.close()

    def _file(self, path: Path) -> _OpenFile:
        """Return an open file.

        Raises:
            PageLost: there is none that can be used.
        """
        file = self._files.get(path)
        if file is None:
            file = self._files[path] = self._opened(path)
            if len(self._files) > MAX_FILES:
                self._files.popitem(last=False)[1].blocks.close()
        self._files.move_to_end(path)
        return file

    def _opened(self, path: Path) -> _OpenFile:
        try:
            descriptor = open_to_look(path)
        except PageFileError as error:
            raise PageLost(str(error)) from error
        try:
            return _OpenFile(FileBlocks(descriptor), self._layout_of(descriptor, path))
        except BaseException:
            os.close(descriptor)
            raise

    def _layout_of(self, descriptor: int, path: Path) -> FileLayout:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode) or status.st_uid != os.geteuid():
            raise PageLost(f"{path} is no file of this user")
        try:
            layout = decode_header(os.pread(descriptor, BLOCK, 0))
        except ValueError as error:
            raise PageLost(f"{path} {error}") from error
        difference = self._geometry.difference(layout.geometry)
        if difference is not None:
            raise PageLost(f"{path} holds {difference}")
        return layout

    def _forget(self, path: Path) -> None:
        file = self._files.pop(path, None)
        if file is not None:
            file.blocks.close()

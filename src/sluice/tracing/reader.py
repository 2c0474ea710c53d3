"""A trace file, read line by line."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import BinaryIO, NamedTuple, Self

from sluice.tracing.format import Header, Record, TraceError, decode, decode_header


class Line(NamedTuple):
    """A record and where it stands, counted from 1."""

    number: int
    record: Record


class TraceReader:
    """An open trace; a context manager. Iterating gives its lines, once.

    Raises:
        TraceError: as for `lines`; and at the start, if the file cannot be read or has no good header.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self.is_truncated = False
        """The last line is cut: the engine was killed while it wrote. Known after the last line."""
        try:
            self._file: BinaryIO = path.open("rb")
        except OSError as error:
            raise TraceError(f"cannot read {path}: {error.strerror}") from error
        try:
            self.header = self._read_header()
        except BaseException:
            self._file.close()
            raise

    def _read_header(self) -> Header:
        try:
            first = self._file.readline()
        except OSError as error:
            raise TraceError(f"cannot read {self._path}: {error.strerror}") from error
        if not first:
            raise TraceError(f"{self._path} is empty")
        try:
            return decode_header(first)
        except TraceError as error:
            raise TraceError(f"{self._path}, line 1: {error}") from error

    def __iter__(self) -> Iterator[Line]:
        """
        Raises:
            TraceError: a line that is no record, by its number. The last line may be cut.
        """
        with closing(self._file):
            for number, text in enumerate(self._file, start=2):
                try:
                    yield Line(number, decode(text, self.header.version))
                except TraceError as error:
                    if not text.endswith(b"\n"):
                        self.is_truncated = True
                        return
                    raise TraceError(f"{self._path}, line {number}: {error}") from error

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

"""Reads numbers and texts of a GGUF file one after the other, and never behind its end."""

from __future__ import annotations

from mmap import mmap
from struct import Struct
from typing import Any

U8, U32, U64 = Struct("<B"), Struct("<I"), Struct("<Q")


class GGUFError(ValueError):
    """A GGUF file is damaged, or of a kind that is not read. The message is one sentence that names the file."""


class Cursor:
    """A place in a file.

    Args:
        name: of the file, for errors.
    """

    def __init__(self, data: mmap, name: str, at: int = 0) -> None:
        self.data = data
        self.name = name
        self.at = at
        self.size = len(data)

    def number(self, kind: Struct, what: str) -> Any:
        """Read a number.

        Args:
            what: is read, for the error.

        Raises:
            GGUFError: the file ends before.
        """
        start = self.skip(kind.size, what)
        return kind.unpack_from(self.data, start)[0]

    def text(self, what: str, longest: int) -> str:
        """Read a text of at most `longest` bytes.

        Raises:
            GGUFError: it is longer, or the file ends before, or it is not UTF-8.
        """
        length = self.number(U64, what)
        if length > longest:
            raise self.error(f"{what} has {length} bytes, and at most {longest} are allowed")
        start = self.skip(length, what)
        return decoded(self.data[start : start + length], what, self.name)

    def skip(self, size: int, what: str) -> int:
        """Advance by `size` bytes. Returns where they begin.

        Raises:
            GGUFError: the file ends before.
        """
        start = self.at
        if size > self.size - start:
            raise self.cut_off(what, size)
        self.at = start + size
        return start

    def skip_texts(self, count: int, what: str) -> None:
        """Advance behind `count` texts.

        Raises:
            GGUFError: the file ends before.
        """
        data, at, size, length_at = self.data, self.at, self.size, U64.unpack_from
        if count > (size - at) // U64.size:
            raise self.error(f"{what} has {count} texts, for which the file of {size} bytes has no room")
        for index in range(count):
            if at > size - U64.size:
                raise self.error(f"{what} is cut off at text {index} of {count}: the file ends at byte {size}")
            at += U64.size + length_at(data, at)[0]
        if at > size:
            raise self.error(f"{what} ends at byte {at}, and the file at byte {size}: it is cut off, or damaged")
        self.at = at

    def cut_off(self, what: str, size: int) -> GGUFError:
        """Return the error for `size` bytes that are not there."""
        end, missing = self.at + size, self.at + size - self.size
        return self.error(f"{what} ends at byte {end}, {missing} behind the end of the file: it is cut off, or damaged")

    def error(self, problem: str) -> GGUFError:
        return GGUFError(f"{self.name}: {problem}")


def decoded(content: bytes, what: str, name: str) -> str:
    """Return a text of a file.

    Raises:
        GGUFError: it is not UTF-8.
    """
    try:
        return content.decode()
    except UnicodeDecodeError as error:
        raise GGUFError(f"{name}: {what} is not UTF-8: byte {error.start} is {content[error.start]:#04x}") from None

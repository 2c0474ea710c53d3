"""Bounds on the contents of a JSON body, which are checked before it is parsed.

Parsing cannot be interrupted and keeps the interpreter's lock: a body of 32 MB that holds 8 million lists would stop
every stream and health check for 8 s. The check goes through a body in pieces of a millisecond.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from sluice.http.base.errors import ApiError, require

MAX_VALUES = 1 << 20
"""Values of a body; a name in an object counts as one too. As token ids they take 30 ms to parse."""
MAX_NAMES = 300_000
"""Names in objects: more than the largest vocabularies have tokens. They take 60 ms."""
MAX_LISTS = 1 << 16
"""Lists and objects of a body. They take 50 ms."""
UNCHECKED = 1 << 16
"""Bytes of a body that cannot hold more."""
PIECE = 1 << 18
"""Bytes that are looked at together."""
MAX_NESTING = 32
"""Lists and objects inside each other of a value for chat templates, which may go through it recursively."""
INTEGERS = range(-(1 << 63), 1 << 64)
"""Integers that a value for chat templates may hold."""
OTHERS = bytes(set(range(256)) - set(b'",:[{'))
"""Bytes that are not counted."""


@dataclass(slots=True)
class _Counts:
    values: int = 0
    names: int = 0
    lists: int = 0
    is_in_string: bool = False


def check_contents(body: bytes) -> None:
    """Refuse a body of too many values.

    Raises:
        ApiError: 413, more than `MAX_VALUES` values, `MAX_NAMES` names, or `MAX_LISTS` lists and objects.
    """
    if len(body) <= UNCHECKED:
        return
    counts, start = _Counts(), 0
    while start < len(body):
        piece = body[start : start + PIECE]
        if _ends_in_escape(piece):
            piece = body[start : start + PIECE + 1]
        start += len(piece)
        _count(counts, piece)
        if counts.values > MAX_VALUES:
            raise ApiError(413, f"the body holds more than {MAX_VALUES} values, the most that are accepted")
        if counts.names > MAX_NAMES:
            raise ApiError(413, f"the body holds more than {MAX_NAMES} names in objects, the most that are accepted")
        if counts.lists > MAX_LISTS:
            raise ApiError(413, f"the body holds more than {MAX_LISTS} lists and objects, the most that are accepted")


def check_nesting(value: Any, param: str) -> None:
    """Refuse a value for chat templates that is nested too deeply, or holds an integer of more than 64 bits.

    Raises:
        ApiError: 400.
    """
    level = [value]
    for _ in range(MAX_NESTING + 1):
        integers = (each for each in level if type(each) is int)
        large = next((each for each in integers if each not in INTEGERS), None)
        require(large is None, f"{param} must hold integers of at most 64 bits, got {large}", param=param)
        inner = [
            [*each.values()] if isinstance(each, dict) else each for each in level if isinstance(each, dict | list)
        ]
        level = [each for items in inner for each in items]
        if not inner:
            return
    require(False, f"{param} may be nested at most {MAX_NESTING} levels deep", param=param)


def _ends_in_escape(piece: bytes) -> bool:
    """Return whether the last byte is a backslash that escapes the next one."""
    return (len(piece) - len(piece.rstrip(b"\\"))) % 2 == 1


def _count(counts: _Counts, piece: bytes) -> None:
    """Count the values that begin in a piece: what follows a comma, a colon or an opening bracket."""
    if b"\\" in piece:
        piece = piece.replace(rb"\\", b"").replace(rb"\"", b"")  # a run of backslashes, and a quote that one escapes
    parts = piece.translate(None, OTHERS).split(b'"')
    outside = b"".join(parts[counts.is_in_string :: 2])
    counts.is_in_string ^= len(parts) % 2 == 0
    lists = outside.count(b"[") + outside.count(b"{")
    counts.values += len(outside)
    counts.names += outside.count(b":")
    counts.lists += lists

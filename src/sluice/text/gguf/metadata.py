"""The metadata of a GGUF file: values by key. Texts and arrays stay in the file until they are asked for."""

from __future__ import annotations

import sys
from array import array
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from struct import Struct

from sluice.text.gguf.cursor import U8, U32, U64, Cursor, GGUFError, decoded

BOOL, TEXT, ARRAY = 7, 8, 9
NUMBERS: Mapping[int, tuple[str, str]] = {
    0: ("uint8", "B"),
    1: ("int8", "b"),
    2: ("uint16", "H"),
    3: ("int16", "h"),
    4: ("uint32", "I"),
    5: ("int32", "i"),
    6: ("float32", "f"),
    10: ("uint64", "Q"),
    11: ("int64", "q"),
    12: ("float64", "d"),
}
"""Number of a type -> its name, and its code in `struct` and `array`."""
STRUCTS = {number: Struct(f"<{code}") for number, (_, code) in NUMBERS.items()}
NAMES = {number: name for number, (name, _) in NUMBERS.items()} | {BOOL: "bool", TEXT: "text"}
LONGEST_KEY = 65535
MOST = 1 << 20
"""Keys, and tensors, that a file may have."""
SMALLEST = U64.size + 1 + U32.size + 1
"""Bytes of the shortest entry: a key of one letter, and a value of one byte."""


@dataclass(frozen=True, slots=True)
class _Place:
    """Where a value is. A text or a number is one item."""

    kind: int
    start: int
    end: int
    count: int = 1
    is_array: bool = False


class Items:
    """An array of a file."""

    def __init__(self, metadata: Metadata, key: str, place: _Place) -> None:
        self._metadata = metadata
        self._key = key
        self._place = place

    def __len__(self) -> int:
        return self._place.count

    def __repr__(self) -> str:
        return f"an array of {len(self)} {NAMES[self._place.kind]}"

    @property
    def holds_texts(self) -> bool:
        return self._place.kind == TEXT

    def texts(self) -> list[str]:
        """Return the items.

        Raises:
            GGUFError: they are no texts, or one is not UTF-8.
        """
        if not self.holds_texts:
            raise self._metadata.error(self._key, "an array of texts")
        content, found, at, length_at = self._content(), [], 0, U64.unpack_from
        try:
            for _ in range(len(self)):
                start = at + U64.size
                at = start + length_at(content, at)[0]
                found.append(content[start:at].decode())
        except UnicodeDecodeError as error:
            raise GGUFError(
                f"{self._metadata.source}: {self._key}[{len(found)}] is not UTF-8: {error.reason}"
            ) from None
        return found

    def numbers(self) -> array[int] | array[float]:
        """Return the items; those of type bool as 0 and 1.

        Raises:
            GGUFError: they are no numbers.
        """
        if self.holds_texts:
            raise self._metadata.error(self._key, "an array of numbers")
        code = "B" if self._place.kind == BOOL else NUMBERS[self._place.kind][1]
        found: array[int] | array[float] = array(code, self._content())
        if sys.byteorder == "big":
            found.byteswap()
        return found

    def _content(self) -> bytes:
        return self._metadata.content(self._place)


class Metadata(Mapping[str, object]):
    """The values of a file by key: a number, a bool, a text, or `Items`."""

    def __init__(self, places: Mapping[str, _Place], cursor: Cursor) -> None:
        self._places = places
        self._data = cursor.data
        self.source = cursor.name

    def __iter__(self) -> Iterator[str]:
        return iter(self._places)

    def __len__(self) -> int:
        return len(self._places)

    def __getitem__(self, key: str) -> object:
        place = self._places[key]
        if place.is_array:
            return Items(self, key, place)
        content = self.content(place)
        if place.kind == TEXT:
            return decoded(content, key, self.source)
        if place.kind == BOOL:
            return content != b"\0"
        return STRUCTS[place.kind].unpack(content)[0]

    def content(self, place: _Place) -> bytes:
        """Return the bytes of a value."""
        return self._data[place.start : place.end]

    def error(self, key: str, accepted: str) -> GGUFError:
        """Return the error for a value that is not accepted."""
        shown = repr(self.get(key))
        return GGUFError(f"{self.source}: {key} must be {accepted}, got {shown[:100]}{'...' * (len(shown) > 100)}")

    def text(self, key: str, default: str | None = None) -> str | None:
        value = self.get(key, default)
        if value is not None and not isinstance(value, str):
            raise self.error(key, "a text")
        return value

    def flag(self, key: str, default: bool) -> bool:
        value = self.get(key, default)
        if not isinstance(value, bool):
            raise self.error(key, "true or false")
        return value

    def integer(self, key: str, default: int | None = None) -> int | None:
        """Return an integer of at least 0."""
        value = self.get(key, default)
        if value is not None and (not isinstance(value, int) or isinstance(value, bool) or value < 0):
            raise self.error(key, "an integer of at least 0")
        return value

    def texts(self, key: str) -> list[str] | None:
        """Return an array of texts."""
        items = self._items(key, "an array of texts")
        return None if items is None else items.texts()

    def numbers(self, key: str, count: int) -> array[int] | array[float] | None:
        """Return an array of `count` numbers."""
        wanted = f"an array of {count} numbers, one for each token"
        items = self._items(key, wanted)
        if items is None:
            return None
        if len(items) != count or items.holds_texts:
            raise self.error(key, wanted)
        return items.numbers()

    def _items(self, key: str, wanted: str) -> Items | None:
        value = self.get(key)
        if value is not None and not isinstance(value, Items):
            raise self.error(key, wanted)
        return value


def read_metadata(cursor: Cursor, count: int) -> Metadata:
    """Find the values of a file, and advance behind them.

    Raises:
        GGUFError: a key or a value is damaged.
    """
    room = (cursor.size - cursor.at) // SMALLEST
    if count > min(room, MOST):
        raise cursor.error(
            f"it says that it has {count} keys, and at most {min(room, MOST)} have room: it is cut off, or damaged"
        )
    places: dict[str, _Place] = {}
    for index in range(count):
        key = cursor.text(f"key {index} of {count}", LONGEST_KEY)
        if not key or key in places:
            raise cursor.error(f"key {index} of {count} is {key!r}, which is there twice" if key else "a key is empty")
        places[key] = _place(cursor, key)
    return Metadata(places, cursor)


def _place(cursor: Cursor, key: str) -> _Place:
    kind = cursor.number(U32, key)
    if kind == ARRAY:
        kind = cursor.number(U32, key)
        if kind == ARRAY:
            raise cursor.error(f"{key} is an array of arrays, which is not read: an array must hold numbers or texts")
        return _array_place(cursor, key, _known(cursor, key, kind))
    if _known(cursor, key, kind) == TEXT:
        length = cursor.number(U64, key)
        start = cursor.skip(length, key)
        return _Place(kind, start, cursor.at)
    start = cursor.skip(_size(kind), key)
    place = _Place(kind, start, cursor.at)
    if kind == BOOL:
        _check_bools(cursor, key, place)
    return place


def _array_place(cursor: Cursor, key: str, kind: int) -> _Place:
    count = cursor.number(U64, key)
    start = cursor.at
    if kind == TEXT:
        cursor.skip_texts(count, key)
    else:
        cursor.skip(count * _size(kind), key)
    place = _Place(kind, start, cursor.at, count, is_array=True)
    if kind == BOOL:
        _check_bools(cursor, key, place)
    return place


def _check_bools(cursor: Cursor, key: str, place: _Place) -> None:
    if cursor.data[place.start : place.end].strip(b"\0\1"):
        raise cursor.error(f"{key} is of type bool, and holds another byte than 0 and 1")


def _size(kind: int) -> int:
    return U8.size if kind == BOOL else STRUCTS[kind].size


def _known(cursor: Cursor, key: str, kind: int) -> int:
    if kind not in NAMES:
        raise cursor.error(f"{key} has a value of type {kind}, and types of values are {', '.join(map(str, NAMES))}")
    return kind

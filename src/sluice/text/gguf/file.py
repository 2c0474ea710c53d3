"""GGUFFile: an open file, mapped to memory."""

from __future__ import annotations

import math
import mmap
import stat
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from sluice.text.gguf.cursor import U32, U64, Cursor, GGUFError
from sluice.text.gguf.metadata import MOST, Metadata, read_metadata
from sluice.text.gguf.tensor_types import REMOVED, TYPES, TensorType

MAGIC = b"GGUF"
VERSIONS = (2, 3)
MOST_DIMENSIONS = 4
LONGEST_NAME = 65535
SMALLEST = U64.size + 1 + U32.size + U64.size + U32.size + U64.size
"""Bytes of the shortest entry of the table: a name of one letter, and one dimension."""
ALIGNMENT = 32
"""Bytes to which tensors are aligned, if `general.alignment` says nothing."""


@dataclass(frozen=True, slots=True)
class TensorInfo:
    """What the table says of a tensor."""

    name: str
    kind: TensorType
    shape: tuple[int, ...]
    """Shape, with the fastest dimension last."""
    start: int
    """Offset of its first byte in the file."""
    nbytes: int
    file: str
    """Name of the file."""
    data: mmap.mmap = field(repr=False, compare=False)
    """Content of the file. Private: what is written there does not reach it."""

    @property
    def numel(self) -> int:
        return math.prod(self.shape)


class GGUFFile:
    """An open file. It stays mapped as long as anything refers to it or to one of its tensors.

    Raises:
        GGUFError: it is no GGUF file, or is damaged or cut off.
    """

    def __init__(self, path: Path) -> None:
        self.name = path.name
        self.data = _mapped(path)
        """All bytes."""
        cursor = Cursor(self.data, self.name)
        _check_version(cursor)
        num_tensors = cursor.number(U64, "the number of tensors")
        num_keys = cursor.number(U64, "the number of keys")
        self.metadata: Metadata = read_metadata(cursor, num_keys)
        self.tensors: Mapping[str, TensorInfo] = _read_table(cursor, num_tensors, _alignment(self.metadata))


def _mapped(path: Path) -> mmap.mmap:
    try:
        if not stat.S_ISREG(path.stat().st_mode):  # to open a pipe would wait
            raise GGUFError(f"{path.name} is not a file")
        with path.open("rb") as file:
            if file.read(len(MAGIC)) != MAGIC:
                raise GGUFError(f"{path.name} is not a GGUF file: it does not begin with {MAGIC.decode()}")
            return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY)
    except OSError as error:
        raise GGUFError(f"{path.name} cannot be read: {error.strerror or error}") from None


def _check_version(cursor: Cursor) -> None:
    cursor.skip(len(MAGIC), "the beginning")
    version = cursor.number(U32, "the version")
    if version in VERSIONS:
        return
    if version and not version & 0xFFFF:
        raise cursor.error("it is a big-endian GGUF file; only little-endian ones are read")
    if version == 1:
        raise cursor.error("it is of GGUF version 1, which is not read: convert the model again")
    raise cursor.error(f"it is of GGUF version {version}; versions {' and '.join(map(str, VERSIONS))} are read")


def _alignment(metadata: Metadata) -> int:
    alignment = metadata.integer("general.alignment", ALIGNMENT)
    if not alignment or alignment & (alignment - 1) or alignment >= 1 << 32:
        raise metadata.error("general.alignment", "a power of two")
    return alignment


def _read_table(cursor: Cursor, count: int, alignment: int) -> Mapping[str, TensorInfo]:
    room = (cursor.size - cursor.at) // SMALLEST
    if count > min(room, MOST):
        raise cursor.error(
            f"it says that it has {count} tensors, and at most {min(room, MOST)} have room: it is cut off, or damaged"
        )
    found: dict[str, TensorInfo] = {}
    for index in range(count):
        info = _read_info(cursor, f"tensor {index} of {count}", alignment)
        if info.name in found:
            raise cursor.error(f"tensor {index} of {count} is {info.name!r}, which is there twice")
        found[info.name] = info
    begin = -(-cursor.at // alignment) * alignment
    placed = {name: replace(info, start=begin + info.start) for name, info in found.items()}
    _check_places(cursor, placed)
    return placed


def _read_info(cursor: Cursor, what: str, alignment: int) -> TensorInfo:
    """Return a tensor with its place behind the beginning of the data."""
    name = cursor.text(f"the name of {what}", LONGEST_NAME)
    what = f"tensor {name!r}"
    dimensions = cursor.number(U32, what)
    if not 1 <= dimensions <= MOST_DIMENSIONS:
        raise cursor.error(f"{what} has {dimensions} dimensions, and 1 to {MOST_DIMENSIONS} are allowed")
    shape = tuple(reversed([cursor.number(U64, what) for _ in range(dimensions)]))
    kind = _kind(cursor, what, cursor.number(U32, what))
    if not all(shape):
        raise cursor.error(f"{what} has the shape {list(shape)}; each dimension must be at least 1")
    if shape[-1] % kind.per_block:
        raise cursor.error(f"{what} has rows of {shape[-1]} values, and {kind.name} has blocks of {kind.per_block}")
    start = cursor.number(U64, what)
    if start % alignment:
        raise cursor.error(f"{what} begins at byte {start} of the data, no multiple of the alignment {alignment}")
    nbytes = math.prod(shape) // kind.per_block * kind.block_bytes
    return TensorInfo(name, kind, shape, start, nbytes, cursor.name, cursor.data)


def _kind(cursor: Cursor, what: str, number: int) -> TensorType:
    if number in TYPES:
        return TYPES[number]
    if number in REMOVED:
        raise cursor.error(f"{what} has type {number}, which was removed from GGUF: convert the model again")
    raise cursor.error(f"{what} has type {number}, which is newer than this version, or damaged")


def _check_places(cursor: Cursor, tensors: Mapping[str, TensorInfo]) -> None:
    """Check that all tensors are within the file, and none over another."""
    end, before = 0, ""
    for info in sorted(tensors.values(), key=lambda info: info.start):
        missing = info.start + info.nbytes - cursor.size
        if missing > 0:
            raise cursor.error(
                f"tensor {info.name!r} needs {info.nbytes} bytes from byte {info.start} on, and the file lacks"
                f" {missing} of them: it is cut off, or damaged"
            )
        if info.start < end:
            raise cursor.error(f"tensors {before!r} and {info.name!r} overlap")
        end, before = info.start + info.nbytes, info.name

"""The format of a page file, as bytes.

    [ header, 4 KiB | index: one entry a page | extent | extent | ... ]

An *extent* is some pages side by side: the first layer of all of them, then the second, and so on. A layer of a page is
its keys, and behind them its values. So pages that follow each other in an extent are read at once, one layer of them.
An extent has as many pages as make a layer `EXTENT_BYTES` long; the last one may have fewer. Extents begin at multiples
of 4 KiB, so that they can be mapped and read past the page cache.

An entry names its page by a digest of its tokens and of all before them, and the parent page by the same: it need not
know where the parent is, or whether it is there.
"""

from __future__ import annotations

import hashlib
import json
import struct
import zlib
from dataclasses import asdict, dataclass, fields
from typing import Any

import numpy as np
import numpy.typing as npt

from sluice.types import PageKey

BLOCK = 4096
EXTENT_BYTES = 256 << 10
"""Bytes of a layer in an extent, about: where pages are larger, an extent is one page."""
SALT_BYTES = 1024
"""Room for an `extra_key` in UTF-8: 256 characters of any kind."""
ENTRY_HEAD_BYTES = 96
TOKEN_BYTES = CHECKSUM_BYTES = 4
DIGEST_BYTES = 32
"""Room for a digest."""
MAGIC = b"SluiceKV"
VERSION = 2
UNFINISHED = MAGIC
"""The whole header of a file that is still being made: it is a page file, and holds nothing."""
_HEADER = struct.Struct("<8sIII")
"""Magic, version, length of the JSON that follows, CRC-32 of it."""
_ENTRY = struct.Struct(f"<IIHBBIQ{DIGEST_BYTES}s{DIGEST_BYTES}s")
"""CRC-32 of all that follows, `Checksums.whole`, bytes of the extra key, of the digest, of the parent's digest, number
of tokens, number of the store, digest, the parent's digest. Then: extra key, tokens, checksums of the layers."""
_CRC = struct.Struct("<I")


class PageFileError(ValueError):
    """A path cannot hold pages. The message is one line for the user."""


class PageFileInUse(PageFileError):
    """Another engine uses the file."""


class PageLost(Exception):
    """A stored page is cut off, or is not what was stored. It has to be computed again.

    Args:
        page: its number, where one page is known to be lost.
    """

    def __init__(self, message: str, page: int | None = None) -> None:
        super().__init__(message)
        self.page = page


@dataclass(frozen=True, slots=True)
class PageGeometry:
    """What a page is made of. Nothing in a file of another geometry can be used."""

    model: str
    """Digest of the weights and the config."""
    code: str
    """What computes keys and values: a release and an implementation."""
    dtype: str
    layout: str
    """Name of the order of a page of one layer in memory."""
    page_size: int
    """Tokens."""
    num_layers: int
    num_kv_heads: int
    head_dim: int
    part_bytes: int
    """Bytes of the keys of one layer of a page; the values take as many."""
    checksum: str
    """Name of the checksum of a layer."""

    @property
    def page_bytes(self) -> int:
        return 2 * self.num_layers * self.part_bytes

    @property
    def extent_pages(self) -> int:
        """Pages of an extent, but for the last one."""
        return max(1, EXTENT_BYTES // (2 * self.part_bytes))

    @property
    def entry_bytes(self) -> int:
        return ENTRY_HEAD_BYTES + SALT_BYTES + self.page_size * TOKEN_BYTES + self.num_layers * CHECKSUM_BYTES

    @property
    def fingerprint(self) -> str:
        """A digest of all of it, in hex."""
        return hashlib.sha256(json.dumps(asdict(self), sort_keys=True).encode()).hexdigest()

    def difference(self, other: PageGeometry) -> str | None:
        """Return the first thing that differs, in words; None if nothing does."""
        for name, words in NAMES:
            ours, theirs = getattr(self, name), getattr(other, name)
            if ours != theirs:
                return words if name == "model" else f"{words} {theirs}, not {ours}"
        return None


NAMES = (
    ("model", "the KV of other weights"),
    ("dtype", "KV in"),
    ("page_size", "pages of"),
    ("num_layers", "layers:"),
    ("num_kv_heads", "KV heads:"),
    ("head_dim", "a head size of"),
    ("layout", "the layout"),
    ("code", "what was computed by"),
    ("part_bytes", "bytes of a layer's keys:"),
    ("checksum", "checksums by"),
)


@dataclass(frozen=True, slots=True)
class FileLayout:
    """Offsets in a file of `num_pages` pages, in bytes."""

    geometry: PageGeometry
    num_pages: int

    @classmethod
    def within(cls, geometry: PageGeometry, size: int) -> FileLayout:
        """Return the layout of as many pages as fit into `size` bytes.

        Raises:
            PageFileError: not even one fits.
        """
        rest = size - 2 * BLOCK  # the header, and what rounds up the index
        extent = geometry.extent_pages
        whole, left = divmod(rest, extent_bytes(geometry, extent) + extent * geometry.entry_bytes)
        last = left // (geometry.page_bytes + geometry.entry_bytes)
        while last and extent_bytes(geometry, last) + last * geometry.entry_bytes > left:
            last -= 1  # its padding
        pages = whole * extent + last
        if pages < 1:
            least = cls(geometry, 1).file_bytes
            raise PageFileError(
                f"--kv-disk-bytes must be at least {least + BLOCK}, room for one page of {geometry.page_size} tokens,"
                f" got {size}"
            )
        return cls(geometry, pages)

    @property
    def index_bytes(self) -> int:
        return self.num_pages * self.geometry.entry_bytes

    @property
    def extents_at(self) -> int:
        """Where the first extent begins."""
        return BLOCK + round_up(self.index_bytes, BLOCK)

    @property
    def file_bytes(self) -> int:
        whole, last = divmod(self.num_pages, self.geometry.extent_pages)
        of_whole = extent_bytes(self.geometry, self.geometry.extent_pages)
        return self.extents_at + whole * of_whole + extent_bytes(self.geometry, last)

    def entry_at(self, page: int) -> int:
        return BLOCK + page * self.geometry.entry_bytes

    def part_at(self, page: int, layer: int) -> int:
        """Return where the keys of a layer of a page begin; its values follow them."""
        return int(self.parts_at(np.array(page), layer))

    def parts_at(self, pages: npt.NDArray[np.int64], layers: npt.NDArray[np.int64] | int) -> npt.NDArray[np.int64]:
        """Return where the keys of layers of pages begin, for arrays of numbers that can be broadcast together."""
        size = self.geometry.extent_pages
        extents, places = np.divmod(pages, size)
        counts = np.minimum(size, self.num_pages - extents * size)
        begin = self.extents_at + extents * extent_bytes(self.geometry, size)
        return np.asarray(begin + (layers * counts + places) * (2 * self.geometry.part_bytes), dtype=np.int64)


def extent_bytes(geometry: PageGeometry, pages: int) -> int:
    """Return the bytes of an extent of so many pages."""
    return round_up(pages * geometry.page_bytes, BLOCK)


def round_up(count: int, unit: int) -> int:
    return -(-count // unit) * unit


def split(data: memoryview, part_bytes: int) -> list[memoryview]:
    """Return the keys and values of each layer of a page, in their order."""
    return [data[start : start + part_bytes] for start in range(0, data.nbytes, part_bytes)]


def is_page_file(data: bytes) -> bool:
    """Return whether a file that begins with `data` is a page file, finished or not."""
    return data.startswith(MAGIC)


def encode_header(layout: FileLayout) -> bytes:
    """Return the header of a file, padded to its 4 KiB."""
    body = json.dumps({"num_slots": layout.num_pages, "geometry": asdict(layout.geometry)}).encode()
    head = _HEADER.pack(MAGIC, VERSION, len(body), zlib.crc32(body))
    return (head + body).ljust(BLOCK, b"\0")


def decode_header(data: bytes) -> FileLayout:
    """Return the layout of a file that begins with `data`.

    Raises:
        ValueError: why there is none, in words that follow "it".
    """
    if not is_page_file(data):
        raise ValueError("is not a page file")
    if len(data) < BLOCK:
        raise ValueError("ends in its header")
    _, version, length, checksum = _HEADER.unpack_from(data)
    if length == 0:
        raise ValueError("was not written completely")
    if version != VERSION:
        raise ValueError(f"has version {version} of the format, not {VERSION}")
    body = data[_HEADER.size : _HEADER.size + length]
    if zlib.crc32(body) != checksum:
        raise ValueError("has a damaged header")
    try:
        found = json.loads(body)
        values = found["geometry"]
        geometry = PageGeometry(**{item.name: _typed(values[item.name], item.type) for item in fields(PageGeometry)})
        return FileLayout(geometry, _typed(found["num_slots"], "int"))
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError("has a damaged header") from error


def _typed(value: object, kind: object) -> Any:
    """Return a value of a header if it has the type that its field names, and is no negative number."""
    if type(value).__name__ != kind or (isinstance(value, int) and value < 0):
        raise TypeError(f"{value!r} is no {kind}")
    return value


@dataclass(frozen=True, slots=True)
class Checksums:
    """The checksums of a page: one a layer, so that a layer can be read alone, and one of all of them."""

    layers: tuple[int, ...]
    """Checksum of each layer's keys and values, of the kind that the geometry names."""

    @property
    def whole(self) -> int:
        """CRC-32 of the layers' checksums."""
        return zlib.crc32(self.pack())

    def pack(self) -> bytes:
        """Return four bytes a layer, little-endian."""
        return struct.pack(f"<{len(self.layers)}I", *self.layers)


@dataclass(frozen=True, slots=True)
class IndexEntry:
    """An entry of the index: which tokens a page holds, and its checksums."""

    key: PageKey
    checksums: Checksums
    number: int
    """Number of the store: older stores have smaller ones."""


def encode_entry(entry: IndexEntry, geometry: PageGeometry) -> bytes:
    """Return the bytes of an entry.

    Raises:
        ValueError: the extra key or a digest is too long, or the key is not that of a full page.
    """
    key, salt, count = entry.key, entry.key.extra_key.encode(), len(entry.key.token_ids)
    if len(salt) > SALT_BYTES:
        raise ValueError(f"an extra key of {len(salt)} bytes, the index has room for {SALT_BYTES}")
    if max(len(key.digest), len(key.parent)) > DIGEST_BYTES:
        raise ValueError(f"a digest of {len(key.digest)} bytes, the index has room for {DIGEST_BYTES}")
    if count != geometry.page_size:
        raise ValueError(f"a page has {geometry.page_size} tokens, got {count}")
    sizes = len(salt), len(key.digest), len(key.parent)
    head = _ENTRY.pack(0, entry.checksums.whole, *sizes, count, entry.number, key.digest, key.parent)
    tokens = struct.pack(f"<{count}i", *key.token_ids)
    layers = entry.checksums.pack()
    data = head.ljust(ENTRY_HEAD_BYTES, b"\0") + salt.ljust(SALT_BYTES, b"\0") + tokens + layers
    return _CRC.pack(zlib.crc32(data[_CRC.size :])) + data[_CRC.size :]


def decode_entry(data: bytes, geometry: PageGeometry) -> IndexEntry | None:
    """Return the entry in `data`; None if there is none, or a damaged one."""
    (found,) = _CRC.unpack_from(data)
    if zlib.crc32(data[_CRC.size :]) != found:
        return None
    _, whole, salt_bytes, digest_bytes, parent_bytes, count, number, digest, parent = _ENTRY.unpack_from(data)
    if count != geometry.page_size:
        return None
    at = ENTRY_HEAD_BYTES
    try:
        salt = data[at : at + salt_bytes].decode()
    except UnicodeDecodeError:
        return None
    tokens = struct.unpack_from(f"<{count}i", data, at + SALT_BYTES)
    layers = struct.unpack_from(f"<{geometry.num_layers}I", data, at + SALT_BYTES + count * TOKEN_BYTES)
    checksums = Checksums(layers)
    if checksums.whole != whole:
        return None
    return IndexEntry(PageKey(digest[:digest_bytes], parent[:parent_bytes], tokens, salt), checksums, number)

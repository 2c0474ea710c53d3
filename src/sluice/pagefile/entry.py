"""An entry of the index: which tokens a record belongs to, and the checksum of what it holds.

A page is named by a digest of its tokens and of all before them, so an entry names its parent without knowing where
that lies, or whether it is there.
"""

from __future__ import annotations

import hashlib
import struct
import zlib
from array import array
from dataclasses import dataclass

from sluice.pagefile.layout import ENTRY_HEAD_BYTES, SALT_BYTES, PageGeometry

DIGEST_BYTES = 16
_HEAD = struct.Struct(f"<IIHHIQ{DIGEST_BYTES}s{DIGEST_BYTES}s")
"""CRC-32 of all behind it, CRC-32 of the record, bytes of the extra key, 0, tokens, number of the store, digest, the
parent's digest."""
EMPTY_DIGEST = bytes(DIGEST_BYTES)


def root_digest(extra_key: str) -> bytes:
    """Names the root of a namespace."""
    return hashlib.blake2b(extra_key.encode(), digest_size=DIGEST_BYTES, person=b"root").digest()


def page_digest(parent: bytes, tokens: bytes) -> bytes:
    """Names the page of `tokens` (int32 in the machine's order) behind `parent`."""
    return hashlib.blake2b(parent + tokens, digest_size=DIGEST_BYTES, person=b"page").digest()


@dataclass(frozen=True, slots=True)
class PageName:
    """Which page a record holds."""

    extra_key: str
    tokens: bytes
    """Its own, int32 each, as the prefix tree keys them."""
    parent: bytes
    """Digest of the page before it, or of its namespace's root."""

    @property
    def digest(self) -> bytes:
        return page_digest(self.parent, self.tokens)


@dataclass(frozen=True, slots=True)
class Entry:
    """What the index says of a slot."""

    name: PageName
    record_crc: int
    number: int
    """Stores are counted: the older, the smaller."""


def encode(entry: Entry, geometry: PageGeometry) -> bytes:
    """
    Raises:
        ValueError: the extra key is too long, or it is not a full page of tokens.
    """
    name, salt = entry.name, entry.name.extra_key.encode()
    if len(salt) > SALT_BYTES:
        raise ValueError(f"an extra key of {len(salt)} bytes, the index has room for {SALT_BYTES}")
    count = len(name.tokens) // array("i").itemsize
    if count != geometry.page_size:
        raise ValueError(f"a page has {geometry.page_size} tokens, got {count}")
    head = _HEAD.pack(0, entry.record_crc, len(salt), 0, count, entry.number, name.digest, name.parent)
    data = head.ljust(ENTRY_HEAD_BYTES, b"\0") + salt.ljust(SALT_BYTES, b"\0") + name.tokens
    return struct.pack("<I", zlib.crc32(data[4:])) + data[4:]


def decode(data: bytes, geometry: PageGeometry) -> Entry | None:
    """None where there is no entry, or a damaged one."""
    checksum, record_crc, salt_bytes, _, count, number, digest, parent = _HEAD.unpack_from(data)
    if zlib.crc32(data[4:]) != checksum or count != geometry.page_size or salt_bytes > SALT_BYTES:
        return None
    salt = data[ENTRY_HEAD_BYTES : ENTRY_HEAD_BYTES + salt_bytes]
    name = PageName(salt.decode(), data[ENTRY_HEAD_BYTES + SALT_BYTES :], parent)
    return Entry(name, record_crc, number) if name.digest == digest else None

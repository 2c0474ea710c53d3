"""An entry of the index: which tokens a record belongs to, and the checksum of what it holds.

A page is named by a digest of its tokens and of all before them, so an entry names its parent without knowing where
that lies, or whether it is there.
"""

from __future__ import annotations

import struct
import zlib
from dataclasses import dataclass

from sluice.tiers.checksums import Checksums
from sluice.tiers.layout import ENTRY_HEAD_BYTES, SALT_BYTES, TOKEN_BYTES, PageGeometry
from sluice.types import PageKey

DIGEST_BYTES = 32
"""Room for a digest."""
_HEAD = struct.Struct(f"<IIHBBIQ{DIGEST_BYTES}s{DIGEST_BYTES}s")
"""CRC-32 of all behind it, `Checksums.whole`, bytes of the extra key, of the digest, of the parent's digest; tokens,
number of the store, digest, the parent's digest. Then: the extra key, the tokens, the checksums of the layers."""
_CRC = struct.Struct("<I")


@dataclass(frozen=True, slots=True)
class Entry:
    """What the index says of a slot."""

    key: PageKey
    checksums: Checksums
    number: int
    """Stores are counted: the older, the smaller."""


def encode(entry: Entry, geometry: PageGeometry) -> bytes:
    """
    Raises:
        ValueError: the extra key or a digest is too long, or it is not a full page of tokens.
    """
    key, salt, count = entry.key, entry.key.extra_key.encode(), len(entry.key.token_ids)
    if len(salt) > SALT_BYTES:
        raise ValueError(f"an extra key of {len(salt)} bytes, the index has room for {SALT_BYTES}")
    if max(len(key.digest), len(key.parent)) > DIGEST_BYTES:
        raise ValueError(f"a digest of {len(key.digest)} bytes, the index has room for {DIGEST_BYTES}")
    if count != geometry.page_size:
        raise ValueError(f"a page has {geometry.page_size} tokens, got {count}")
    sizes = len(salt), len(key.digest), len(key.parent)
    head = _HEAD.pack(0, entry.checksums.whole, *sizes, count, entry.number, key.digest, key.parent)
    tokens = struct.pack(f"<{count}i", *key.token_ids)
    layers = entry.checksums.pack()
    data = head.ljust(ENTRY_HEAD_BYTES, b"\0") + salt.ljust(SALT_BYTES, b"\0") + tokens + layers
    return _CRC.pack(zlib.crc32(data[_CRC.size :])) + data[_CRC.size :]


def decode(data: bytes, geometry: PageGeometry) -> Entry | None:
    """None where there is no entry, or a damaged one."""
    (found,) = _CRC.unpack_from(data)
    if zlib.crc32(data[_CRC.size :]) != found:
        return None
    _, whole, salt_bytes, digest_bytes, parent_bytes, count, number, digest, parent = _HEAD.unpack_from(data)
    assert count == geometry.page_size, f"an entry of {count} tokens in a file of pages of {geometry.page_size}"
    at = ENTRY_HEAD_BYTES
    salt = data[at : at + salt_bytes].decode()
    tokens = struct.unpack_from(f"<{count}i", data, at + SALT_BYTES)
    layers = struct.unpack_from(f"<{geometry.num_layers}I", data, at + SALT_BYTES + count * TOKEN_BYTES)
    checksums = Checksums(layers)
    assert checksums.whole == whole, f"layers of {checksums.whole:08x} in an entry of {whole:08x}"
    return Entry(PageKey(digest[:digest_bytes], parent[:parent_bytes], tokens, salt), checksums, number)

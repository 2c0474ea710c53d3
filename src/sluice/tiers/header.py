"""The first 4 KiB of a page file: which file it is, and whose pages it holds."""

from __future__ import annotations

import json
import struct
import zlib
from dataclasses import asdict, fields

from sluice.tiers.layout import BLOCK, FileLayout, PageGeometry

MAGIC = b"SluiceKV"
VERSION = 1
_HEAD = struct.Struct("<8sIII")
"""Magic, version, length of the JSON behind it, CRC-32 of that."""

UNFINISHED = MAGIC
"""All there is of the header while a file is made: ours, with nothing in it."""


def encode(layout: FileLayout) -> bytes:
    """The header of a file, padded to its 4 KiB."""
    body = json.dumps({"num_slots": layout.num_slots, "geometry": asdict(layout.geometry)}).encode()
    head = _HEAD.pack(MAGIC, VERSION, len(body), zlib.crc32(body))
    return (head + body).ljust(BLOCK, b"\0")


def decode(data: bytes) -> FileLayout:
    """The layout that a header tells of.

    Raises:
        ValueError: why it tells of none, in words that follow "it".
    """
    if not is_ours(data):
        raise ValueError("does not begin as a page file does")
    if len(data) < BLOCK:
        raise ValueError("ends in its header")
    _, version, length, checksum = _HEAD.unpack_from(data)
    if length == 0:
        raise ValueError("was never finished")
    if version != VERSION:
        raise ValueError(f"has version {version} of the format, not {VERSION}")
    body = data[_HEAD.size : _HEAD.size + length]
    if zlib.crc32(body) != checksum:
        raise ValueError("has a damaged header")
    told = json.loads(body)
    values = told["geometry"]
    return FileLayout(
        PageGeometry(**{item.name: values[item.name] for item in fields(PageGeometry)}), told["num_slots"]
    )


def is_ours(data: bytes) -> bool:
    return data.startswith(MAGIC)

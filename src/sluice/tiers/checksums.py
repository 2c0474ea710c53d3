"""Checksums of a page: one for each layer, so that a layer can be read alone, and one for all of it."""

from __future__ import annotations

import struct
import zlib
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Checksums:
    """Of one page."""

    layers: tuple[int, ...]
    """CRC-32 of each layer's keys and values."""

    @classmethod
    def of(cls, parts: Sequence[memoryview]) -> Checksums:
        """Of a page's keys and values of each layer, in their order."""
        return cls(tuple(layer_checksum(k, v) for k, v in zip(parts[::2], parts[1::2], strict=True)))

    @property
    def whole(self) -> int:
        """CRC-32 of the layers' checksums."""
        return zlib.crc32(self.pack())

    def pack(self) -> bytes:
        """Four bytes a layer, little-endian."""
        return struct.pack(f"<{len(self.layers)}I", *self.layers)


def layer_checksum(k: memoryview, v: memoryview) -> int:
    """CRC-32 of a layer's keys and values."""
    return zlib.crc32(v, zlib.crc32(k))

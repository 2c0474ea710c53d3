"""Writes GGUF files byte by byte, so that a test can write what no writer would."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from pathlib import Path

UINT8, INT32, FLOAT32, BOOL, TEXT, ARRAY, UINT32, UINT64 = 0, 5, 6, 7, 8, 9, 4, 10
CODES = {UINT8: "B", INT32: "i", FLOAT32: "f", BOOL: "B", UINT32: "I", UINT64: "Q"}


def text(value: str | bytes) -> bytes:
    content = value.encode() if isinstance(value, str) else value
    return struct.pack("<Q", len(content)) + content


def value(kind: int, content: int | float | str) -> bytes:
    """Return a value with its type."""
    packed = text(content) if isinstance(content, str) else struct.pack(f"<{CODES[kind]}", content)
    return struct.pack("<I", kind) + packed


def items(kind: int, content: Sequence[int | float | str | bytes], count: int | None = None) -> bytes:
    """Return an array with its type.

    Args:
        count: what it says of its length; None: the truth.
    """
    head = struct.pack("<IIQ", ARRAY, kind, len(content) if count is None else count)
    each = [text(item) if isinstance(item, str | bytes) else struct.pack(f"<{CODES[kind]}", item) for item in content]
    return head + b"".join(each)


def tensor(name: str, shape: Sequence[int], kind: int = 0, offset: int = 0) -> bytes:
    """Return a row of the table of tensors; the fastest dimension is the first one."""
    return text(name) + struct.pack(f"<I{len(shape)}QIQ", len(shape), *shape, kind, offset)


def write(
    path: Path,
    keys: Sequence[tuple[str | bytes, bytes]] = (),
    tensors: Sequence[bytes] = (),
    data: bytes = b"",
    *,
    version: int = 3,
    num_keys: int | None = None,
    num_tensors: int | None = None,
    alignment: int = 32,
) -> Path:
    """Write a file whose counts are right, unless they are given."""
    counts = (
        len(tensors) if num_tensors is None else num_tensors,
        len(keys) if num_keys is None else num_keys,
    )
    head = b"GGUF" + struct.pack("<IQQ", version, *counts)
    head += b"".join(text(key) + content for key, content in keys) + b"".join(tensors)
    path.write_bytes(head + bytes(-len(head) % alignment if tensors else 0) + data)
    return path

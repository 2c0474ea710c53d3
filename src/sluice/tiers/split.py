"""A page's bytes in the parts of its layers."""

from __future__ import annotations


def split(data: memoryview, part_bytes: int) -> list[memoryview]:
    """Keys and values of each layer, in the order of a record."""
    return [data[start : start + part_bytes] for start in range(0, data.nbytes, part_bytes)]

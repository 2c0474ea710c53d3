"""Writes random weights as safetensors, a slice at a time, so that memory does not grow with the model."""

from __future__ import annotations

import json
import math
import struct
from collections.abc import Iterable, Mapping
from hashlib import blake2b
from pathlib import Path
from typing import BinaryIO

import torch

from benchmarks.checkpoint.tensors import TensorShape

DTYPES: Mapping[str, torch.dtype] = {
    "bfloat16": torch.bfloat16,
    "float16": torch.float16,
    "float32": torch.float32,
}
SPELLINGS: Mapping[str, str] = {"bfloat16": "BF16", "float16": "F16", "float32": "F32"}
"""Dtypes and their names in a safetensors header."""
SCALE = 0.02
"""Standard deviation with which these families initialise weights."""
SLICE = 1 << 22
"""Number of elements drawn at a time."""
ALIGNMENT = 8


def write_weights(path: Path, tensors: Iterable[TensorShape], *, dtype: str, seed: int) -> int:
    """Write all tensors. A tensor depends on the seed and its own name, not on the ones before it.

    Args:
        dtype: a key of `DTYPES`.

    Returns:
        The number of parameters.
    """
    listed = list(tensors)
    size = DTYPES[dtype].itemsize
    with path.open("wb") as file:
        file.write(_header(listed, SPELLINGS[dtype], size))
        for tensor in listed:
            _write(file, tensor, DTYPES[dtype], seed)
    return sum(math.prod(tensor.shape) for tensor in listed)


def _header(tensors: Iterable[TensorShape], spelling: str, item_size: int) -> bytes:
    """Return the header of safetensors: its length as 8 little-endian bytes, then JSON padded with spaces."""
    content: dict[str, object] = {"__metadata__": {"format": "pt"}}
    offset = 0
    for tensor in tensors:
        end = offset + math.prod(tensor.shape) * item_size
        content[tensor.name] = {"dtype": spelling, "shape": tensor.shape, "data_offsets": (offset, end)}
        offset = end
    text = json.dumps(content, separators=(",", ":")).encode()
    text += b" " * (-len(text) % ALIGNMENT)
    return struct.pack("<Q", len(text)) + text


def _write(file: BinaryIO, tensor: TensorShape, dtype: torch.dtype, seed: int) -> None:
    digest = blake2b(f"{seed}/{tensor.name}".encode(), digest_size=7).digest()
    generator = torch.Generator().manual_seed(int.from_bytes(digest, "little"))
    left = math.prod(tensor.shape)
    while left:
        count = min(left, SLICE)
        if tensor.fill is None:
            values = torch.randn(count, generator=generator) * SCALE
        else:
            values = torch.full((count,), tensor.fill)
        file.write(values.to(dtype).view(torch.uint8).numpy().tobytes())
        left -= count

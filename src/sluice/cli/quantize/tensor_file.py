"""Writes a safetensors file tensor by tensor. The library's writer needs all of them at once, in memory."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Self

import torch

from sluice.cli.quantize.schemes import WrittenTensor

DTYPES: Mapping[torch.dtype, str] = {
    torch.float64: "F64",
    torch.float32: "F32",
    torch.float16: "F16",
    torch.bfloat16: "BF16",
    torch.int64: "I64",
    torch.int32: "I32",
    torch.int16: "I16",
    torch.int8: "I8",
    torch.uint8: "U8",
    torch.bool: "BOOL",
}
"""Names of dtypes in the format."""
ALIGNMENT = 8


class TensorFile:
    """A new file, entered while it is written. Each tensor has its place from the start, so any order will do.

    Args:
        path: of the file, which must not exist.
        tensors: what it is to hold; dtypes are keys of `DTYPES`.
    """

    def __init__(self, path: Path, tensors: Mapping[str, WrittenTensor]) -> None:
        # Wide dtypes first, so that every tensor is aligned.
        order = sorted(tensors, key=lambda name: (-tensors[name].dtype.itemsize, name))
        header: dict[str, object] = {"__metadata__": {"format": "pt"}}
        self._places: dict[str, int] = {}
        end = 0
        for name in order:
            dtype, shape = tensors[name]
            start, end = end, end + math.prod(shape) * dtype.itemsize
            header[name] = {"dtype": DTYPES[dtype], "shape": shape, "data_offsets": (start, end)}
            self._places[name] = start
        text = json.dumps(header).encode()
        text += b" " * (-len(text) % ALIGNMENT)
        self._start = 8 + len(text)
        self._tensors = dict(tensors)
        self.nbytes = end
        """Bytes of all tensors."""
        self._file = path.open("xb")
        try:
            self._file.write(len(text).to_bytes(8, "little") + text)
            self._file.truncate(self._start + end)
        except OSError:
            self._file.close()
            raise

    def write(self, name: str, value: torch.Tensor) -> None:
        """Write a tensor in its place."""
        assert self._tensors.pop(name) == (value.dtype, tuple(value.shape)), f"{name} is another tensor"
        self._file.seek(self._start + self._places[name])
        self._file.write(value.contiguous().reshape(-1).view(torch.uint8).numpy().data)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        with self._file:
            if kind is None:
                assert not self._tensors, f"not written: {', '.join(self._tensors)}"
                self._file.flush()
                os.fsync(self._file.fileno())

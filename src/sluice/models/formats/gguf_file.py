"""GGUF files, opened by llama.cpp's own reader: their metadata and their tensors."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

from sluice.models.checkpoint import CheckpointError, Fields
from sluice.models.formats.extra import need
from sluice.models.formats.packed import pairs
from sluice.models.quantized import Int4Weight

BROKEN = (ValueError, IndexError, KeyError, TypeError, OverflowError, OSError)
"""What the reader raises for a damaged file, which it reads without checks of its own."""
Q4_0_BYTES = 18
"""Of a block: a scale in float16, then 32 numbers, the first half of them in the lower four bits."""
AT_ONCE = 1 << 21
"""Elements that are dequantised at once."""


class GGUFTensor:
    """A tensor of a file.

    Args:
        stored: the library's `ReaderTensor`.
        file: name of the file.
    """

    def __init__(self, stored: Any, file: str) -> None:
        self._stored = stored
        self._file = file
        self.name: str = stored.name
        self.shape: tuple[int, ...] = tuple(int(size) for size in reversed(stored.shape))
        self.kind: str = stored.tensor_type.name
        self.nbytes = int(stored.n_bytes)

    def dequantized(self, dtype: torch.dtype, order: torch.Tensor | None = None) -> torch.Tensor:
        """Return the values in a dtype, a slice at a time.

        Args:
            order: [rows] int64, the stored row of each row; None leaves them as they are.

        Raises:
            CheckpointError: their quantisation is not known.
        """
        if len(self.shape) == 1:
            return self._values(self._stored.data, dtype)
        values = torch.empty(self.shape, dtype=dtype)
        step = max(1, AT_ONCE // self.shape[1])
        for start in range(0, self.shape[0], step):
            rows = slice(start, start + step) if order is None else order[start : start + step].numpy()
            values[start : start + step] = self._values(self._stored.data[rows], dtype)
        return values

    def kept(self, order: torch.Tensor | None = None) -> Int4Weight | None:
        """Return the numbers of type Q4_0 as they are stored; None if it has another type.

        Args:
            order: as for `dequantized`.
        """
        if self.kind != "Q4_0":
            return None
        rows = slice(None) if order is None else order.numpy()
        blocks = torch.tensor(self._stored.data[rows]).view(self.shape[0], -1, Q4_0_BYTES)
        scales = blocks[..., :2].contiguous().view(torch.float16)[..., 0].float()
        halves = blocks[..., 2:]
        return Int4Weight(pairs(torch.cat((halves & 15, halves >> 4), dim=-1).flatten(1)), scales)

    def _values(self, data: Any, dtype: torch.dtype) -> torch.Tensor:
        quants = need("gguf.quants", self._file)
        try:
            wide = quants.dequantize(data, self._stored.tensor_type)
        except NotImplementedError:
            raise CheckpointError(
                f"{self._file}: tensor {self.name} has type {self.kind}, which the package gguf cannot dequantise"
            ) from None
        return torch.tensor(wide).to(dtype)


class GGUFFile:
    """An open GGUF file.

    Raises:
        CheckpointError: it cannot be read, or the package `gguf` is not installed.
    """

    def __init__(self, path: Path) -> None:
        reader = need("gguf", f"{path.name} is a GGUF file, which")
        self.name = path.name
        try:
            self._reader = reader.GGUFReader(path)
        except BROKEN as error:
            raise CheckpointError(f"{path.name} is not a readable GGUF file, or is cut off: {error}") from error

    def metadata(self) -> Fields:
        """Return the metadata.

        Raises:
            CheckpointError: a value cannot be read.
        """
        try:
            values = {name: field.contents() for name, field in self._reader.fields.items()}
        except BROKEN as error:
            raise CheckpointError(f"{self.name}: its metadata cannot be read: {error}") from error
        return Fields(values, self.name)

    def tensors(self) -> Iterator[GGUFTensor]:
        """Iterate over the tensors, which stay in the file until they are dequantised."""
        for stored in self._reader.tensors:
            yield GGUFTensor(stored, self.name)

"""The tensors of a GGUF file, read from the mapped file when they are asked for."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace

import torch

from sluice.models.block_types import BLOCK_TYPES, Q4_0, group_weight
from sluice.models.checkpoint import CheckpointError
from sluice.models.formats.packed import pairs
from sluice.models.ops import compute_dtype
from sluice.models.quantized import Int4Weight
from sluice.models.stored_blocks import StoredBlocks
from sluice.text.gguf.file import TensorInfo
from sluice.text.gguf.model import GGUFModel

PLAIN: Mapping[str, torch.dtype] = {
    "F32": torch.float32,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "F64": torch.float64,
}
AT_ONCE = (1 << 15) - 1
"""Elements that are dequantised at once. They stay in the cache, and torch divides fewer than 32,768 not among threads,
which would wait for each other longer than they work where something else runs on the processors."""


class GGUFTensor:
    """A tensor of a file."""

    def __init__(self, info: TensorInfo) -> None:
        self._info = info
        self._kind = info.kind
        self.name = info.name
        self.file = info.file
        self.shape = info.shape
        self.nbytes = info.nbytes
        self.numel = info.numel

    def experts(self, parts: int) -> Iterator[GGUFTensor]:
        """Iterate over the layers of experts, which the tensor holds one behind the other.

        Args:
            parts: layers that it holds of each expert.
        """
        info = self._info
        count, rows = info.shape[0] * parts, info.shape[1] // parts
        size = info.nbytes // count
        for number in range(count):
            start = info.start + number * size
            yield GGUFTensor(replace(info, shape=(rows, *info.shape[2:]), start=start, nbytes=size))

    def dequantized(
        self, dtype: torch.dtype, order: torch.Tensor | None = None, memory: torch.Tensor | None = None
    ) -> torch.Tensor:
        """Return the values in a dtype, a slice at a time; of a vector, in `compute_dtype` of it.

        Args:
            memory: of this dtype, one-dimensional, and long enough: what is returned is in it. None: in new memory.
            order: [rows] int64, the stored row of each row, or element of each element of a vector, of all or of some;
                None leaves them as they are.

        Raises:
            CheckpointError: it has a type that weights do not have.
        """
        stored = self._rows()
        if len(self.shape) == 1:
            vector = self._values(stored)[0].to(compute_dtype(dtype), copy=True)
            return vector if order is None else vector[order]
        numel = self.numel if order is None else len(order) * self.shape[-1]
        if memory is None:
            memory = torch.empty(numel, dtype=dtype)
        values = memory[:numel].view(-1, self.shape[-1])
        step = max(1, AT_ONCE // self.shape[-1])
        for start in range(0, len(values), step):
            stop = start + step
            rows = stored[start:stop] if order is None else stored.index_select(0, order[start:stop])
            values[start:stop].copy_(self._values(rows))
        return values if order is not None else values.view(self.shape)

    def blocks(self, order: torch.Tensor | None = None) -> StoredBlocks | None:
        """Return a matrix as its blocks, which stay in the file; None if it is not stored in blocks.

        Args:
            order: as for `dequantized`.
        """
        if self._kind.name not in BLOCK_TYPES or len(self.shape) != 2:
            return None
        return StoredBlocks(self._kind.name, self._rows(), None if order is None else order.int(), is_mapped=True)

    def four_bits(self, order: torch.Tensor | None = None) -> Int4Weight | None:
        """Return the numbers of type Q4_0 as they are stored; None if it has another type.

        Args:
            order: as for `dequantized`.
        """
        if self._kind.name != Q4_0:
            return None
        weight = group_weight(Q4_0, self._rows() if order is None else self._rows()[order])
        return Int4Weight(pairs(weight.numbers), weight.scales)

    def _rows(self) -> torch.Tensor:
        """Return the stored bytes [rows, bytes], in the mapped file."""
        row = self.shape[-1] // self._kind.per_block * self._kind.block_bytes
        info = self._info
        return torch.frombuffer(info.data, dtype=torch.uint8, count=info.nbytes, offset=info.start).view(-1, row)

    def _values(self, rows: torch.Tensor) -> torch.Tensor:
        name = self._kind.name
        if name in PLAIN:
            return rows.contiguous().view(PLAIN[name])
        if name in BLOCK_TYPES:
            return group_weight(name, rows).dense(torch.float32)
        raise CheckpointError(f"{self.file}: tensor {self.name} has type {name}, which weights do not have")


def tensors_of(model: GGUFModel) -> Iterator[GGUFTensor]:
    """Iterate over the tensors, which stay in their files until they are dequantised."""
    yield from map(GGUFTensor, model.tensors.values())

"""A weight as the blocks of a GGUF file, which stay in the file until they are packed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Self

import torch

from sluice.models.block_types import BLOCK_TYPES, group_weight
from sluice.models.group_weight import GroupWeight

AT_ONCE = 1 << 21
"""Elements that are dequantised at once."""


@dataclass(frozen=True, slots=True)
class StoredBlocks:
    """Rows of blocks of one type.

    Raises:
        ValueError: a tensor has another shape or dtype than below.
    """

    kind: str
    """A key of `BLOCK_TYPES`."""
    blocks: torch.Tensor
    """[stored rows, bytes] uint8. Rows may be strided, and are only read."""
    order: torch.Tensor | None = None
    """[out_features] int32, the stored row of each output; None: in order."""

    is_mapped: bool = False
    """The blocks are in the mapping of a file."""

    def __post_init__(self) -> None:
        blocks, size = self.blocks, BLOCK_TYPES[self.kind].size
        if blocks.dtype != torch.uint8 or blocks.ndim != 2 or blocks.shape[1] % size or blocks.stride(1) != 1:
            raise ValueError(f"blocks must be rows of {size} bytes each, got {blocks.dtype} {list(blocks.shape)}")
        if self.order is not None and self.order.dtype != torch.int32:
            raise ValueError(f"the order of rows must be int32, got {self.order.dtype}")

    @property
    def out_features(self) -> int:
        """Rows of the weight."""
        return len(self.blocks if self.order is None else self.order)

    @property
    def in_features(self) -> int:
        """Columns of the weight."""
        block = BLOCK_TYPES[self.kind]
        return self.blocks.shape[1] // block.size * block.inputs

    @property
    def nbytes(self) -> int:
        """Bytes of the weight in its file."""
        return self.out_features * self.blocks.shape[1]

    def outputs(self, *ranges: range) -> Self:
        """Return a view of some outputs, one range behind the other."""
        if self.order is None and len(ranges) == 1:
            return replace(self, blocks=self.blocks[ranges[0].start : ranges[0].stop])
        order = torch.arange(len(self.blocks), dtype=torch.int32) if self.order is None else self.order
        parts = [order[each.start : each.stop] for each in ranges]
        return replace(self, order=parts[0] if len(parts) == 1 else torch.cat(parts))

    def halves(self) -> list[Self]:
        """Return views of the first and the second half of the outputs."""
        half = self.out_features // 2
        return [self.outputs(range(half)), self.outputs(range(half, 2 * half))]

    def can_be_cut(self, ranges: Sequence[range]) -> bool:
        """Return whether no range of inputs begins or ends inside a block."""
        size = BLOCK_TYPES[self.kind].inputs
        return all(each.start % size == 0 and each.stop % size == 0 for each in ranges)

    def inputs(self, columns: range) -> Self:
        """Return a view of some inputs.

        Raises:
            ValueError: they begin or end inside a block.
        """
        block = BLOCK_TYPES[self.kind]
        if not self.can_be_cut((columns,)):
            raise ValueError(f"blocks of {block.inputs} inputs do not divide a shard's {len(columns)}")
        first, end = (at // block.inputs * block.size for at in (columns.start, columns.stop))
        return replace(self, blocks=self.blocks[:, first:end])

    def to(self, device: torch.device) -> Self:
        """Return the same blocks: they are packed from where they are, on the CPU."""
        return self

    def group_weight(self) -> GroupWeight:
        """Return the weight that the blocks stand for, in the form of the definition."""
        return group_weight(self.kind, self.blocks if self.order is None else self.blocks[self.order.long()])

    def dense(self, dtype: torch.dtype) -> torch.Tensor:
        """Return the weight [out_features, in_features] rounded to `dtype`, a slice at a time."""
        rows = max(1, AT_ONCE // self.in_features)
        made = torch.empty((self.out_features, self.in_features), dtype=dtype)
        for start in range(0, self.out_features, rows):
            part = range(start, min(start + rows, self.out_features))
            made[start : part.stop] = self.outputs(part).group_weight().dense(dtype)
        return made

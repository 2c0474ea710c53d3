"""The open blocks of a step as arrays.

a chunk       [ whole blocks ..... | open block: known | masked ....... ]
its samples                                              one each          -> S
late tokens   the same positions: their inputs are in `OpenBlocks`         -> L = S
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from sluice.types import Chunk

_Ints = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class HostBlocks:
    """The open blocks of a step. R = rows with one, in plan order; S = their masked positions."""

    block_size: int
    plan_rows: _Ints
    """[R] indices into `plan.chunks`"""
    slots: _Ints
    """[R]"""
    known: _Ints
    """[R] the first positions of the block that are not masked at its beginning: the end of a prompt"""
    is_opened: npt.NDArray[np.bool_]
    """[R] whether the block begins in this step"""
    firsts: _Ints
    """[R] indices into S of each row's first sample"""
    rows: _Ints
    """[S] of R"""
    columns: _Ints
    """[S] positions in the block"""

    @property
    def entries(self) -> _Ints:
        """[S] entries of `OpenBlocks.read`."""
        return self.slots[self.rows] * self.block_size + self.columns

    @classmethod
    def of(cls, chunks: Sequence[Chunk], block_size: int, open_at: _Ints) -> HostBlocks | None:
        """Return the open blocks of a plan's chunks; None if there are none.

        Args:
            open_at: [slots] place of the block that a slot has open, -1 without one. Changed to those of the step.
        """
        plan_rows = np.flatnonzero([chunk.num_drafts > 0 for chunk in chunks])
        if not len(plan_rows):
            return None
        with_block = [chunks[row] for row in plan_rows.tolist()]
        slots = np.array([chunk.slot for chunk in with_block], dtype=np.int64)
        starts = np.array([chunk.end - block_size for chunk in with_block], dtype=np.int64)
        counts = np.array([chunk.num_drafts for chunk in with_block], dtype=np.int64)
        is_opened = open_at[slots] != starts
        open_at[slots] = starts
        firsts, known = counts.cumsum() - counts, block_size - counts
        rows = np.repeat(np.arange(len(with_block)), counts)
        columns = np.arange(len(rows)) - firsts[rows] + known[rows]
        return cls(block_size, plan_rows, slots, known, is_opened, firsts, rows, columns)

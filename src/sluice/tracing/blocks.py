"""How many passes the blocks of a model of block diffusion took."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from sluice.tracing.run import StepRun


class BlockSummary(NamedTuple):
    """Counts over a run."""

    block_size: int
    blocks: int
    """Blocks that became whole."""
    passes: int
    """Of all blocks, with those that never became whole."""


def summarize_blocks(steps: Sequence[StepRun], block_size: int) -> BlockSummary | None:
    """Return the counts; None if the model generates token by token, with blocks of size 0."""
    if not block_size:
        return None
    return BlockSummary(block_size, sum(step.brought for step in steps), sum(step.with_drafts for step in steps))


def report_blocks(summary: BlockSummary | None) -> Sequence[str]:
    """Return the lines of a report; none without blocks."""
    if summary is None:
        return ()
    each = f", {summary.passes / summary.blocks:.2f} each" if summary.blocks else ""
    return (f"blocks of {summary.block_size} tokens: {summary.blocks} filled in by {summary.passes} passes{each}",)

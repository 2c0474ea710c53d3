"""Simulates a slow disk: reads of a page file take as long as they would at a given rate."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from sluice.tiers.blocks import FileBlocks


@contextmanager
def slow_disk(bytes_per_second: float | None) -> Iterator[None]:
    """Slow down the reads of all page files of this process; None leaves them as they are."""
    if bytes_per_second is None:
        yield
        return
    plain = FileBlocks.read

    def read(blocks: FileBlocks, buffers: Sequence[memoryview], offset: int) -> None:
        began = time.perf_counter()
        plain(blocks, buffers, offset)
        due = sum(buffer.nbytes for buffer in buffers) / bytes_per_second
        time.sleep(max(0.0, due - (time.perf_counter() - began)))

    FileBlocks.read = read  # type: ignore[method-assign]
    try:
        yield
    finally:
        FileBlocks.read = plain  # type: ignore[method-assign]

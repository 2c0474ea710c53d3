"""Simulates a slow disk: reads of a page file take as long as they would at a given rate."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from sluice.storage.blocks import FileBlocks
from sluice.storage.checksums import Checksum, Crc32, Differs, PageRun


@contextmanager
def slow_disk(bytes_per_second: float | None) -> Iterator[None]:
    """Slow down the reads of all page files of this process; None leaves them as they are."""
    if bytes_per_second is None:
        yield
        return
    plain, plain_run = FileBlocks.read, FileBlocks.read_run

    def read(blocks: FileBlocks, buffers: Sequence[memoryview], offset: int) -> None:
        began = time.perf_counter()
        plain(blocks, buffers, offset)
        due = sum(buffer.nbytes for buffer in buffers) / bytes_per_second
        time.sleep(max(0.0, due - (time.perf_counter() - began)))

    def read_run(blocks: FileBlocks, checksum: Checksum, run: PageRun) -> Differs | None:
        if checksum.name == Crc32.name:  # it calls `read`
            return plain_run(blocks, checksum, run)
        began = time.perf_counter()
        differs = plain_run(blocks, checksum, run)
        due = (run.k.nbytes + run.v.nbytes) / bytes_per_second
        time.sleep(max(0.0, due - (time.perf_counter() - began)))
        return differs

    FileBlocks.read = read  # type: ignore[method-assign]
    FileBlocks.read_run = read_run  # type: ignore[method-assign]
    try:
        yield
    finally:
        FileBlocks.read = plain  # type: ignore[method-assign]
        FileBlocks.read_run = plain_run  # type: ignore[method-assign]

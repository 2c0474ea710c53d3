"""Measures the largest rate of reading a file piece by piece into one buffer, to compare prefetching with."""

from __future__ import annotations

import os
import time
from pathlib import Path


def read_bandwidth(path: Path, piece_bytes: int, seconds: float = 1.0) -> float:
    """Return the bytes per second of one thread that only reads a file, again and again from its beginning.

    Parts of the file in the page cache are read from there, as when an engine reads it.

    Raises:
        OSError: the file cannot be read.
        ValueError: the file is shorter than a piece.
    """
    size = path.stat().st_size // piece_bytes * piece_bytes
    if not size:
        raise ValueError(f"{path} must hold at least {piece_bytes} bytes, it has {path.stat().st_size}")
    buffer = memoryview(bytearray(piece_bytes))
    descriptor = os.open(path, os.O_RDONLY)
    try:
        done, offset, start = 0, 0, time.perf_counter()
        while (elapsed := time.perf_counter() - start) < seconds or not done:
            done += os.preadv(descriptor, [buffer], offset)
            offset = (offset + piece_bytes) % size
        return done / elapsed
    finally:
        os.close(descriptor)

"""How fast a file can be read at most, piece by piece into one buffer: what prefetching is compared with."""

from __future__ import annotations

import os
import time
from pathlib import Path


def read_bandwidth(path: Path, piece_bytes: int, seconds: float = 1.0) -> float:
    """Bytes per second of one thread that reads a file from its beginning, again and again, and does nothing else.

    What the system keeps of the file in memory comes from there, as it does while an engine reads it.

    Raises:
        OSError: it cannot be read.
        ValueError: it is shorter than a piece.
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

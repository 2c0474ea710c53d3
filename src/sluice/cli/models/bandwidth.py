"""How fast this machine reads its memory, measured in less than a second."""

from __future__ import annotations

import time

import torch

NUMBERS = 1 << 26
"""Numbers of four bytes that are read: 256 MiB, which no cache holds."""
TIMES = 5


def measured_bandwidth(threads: int) -> float:
    """Return the bytes a second at which some threads read memory: the fastest of a few sums over 256 MiB.

    The number of threads of torch is as before when it returns.
    """
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        numbers = torch.ones(NUMBERS, dtype=torch.float32)
        return numbers.nbytes / min(_seconds(numbers) for _ in range(TIMES))
    finally:
        torch.set_num_threads(before)


def _seconds(numbers: torch.Tensor) -> float:
    start = time.perf_counter()
    numbers.sum()
    return time.perf_counter() - start

"""What a machine does at the moment: a matrix product, a checked read from the page cache, a copy in memory."""

from __future__ import annotations

import time
from dataclasses import dataclass

import torch

from sluice.assembly.ring_sizes import measured_rates

COPIED_BYTES, TIMES = 64 << 20, 5


@dataclass(frozen=True, slots=True)
class Speed:
    """Rates per second."""

    flops: float
    """Of a matrix product in float32."""
    loading: float
    """Bytes that one thread reads from the page cache and checks."""
    copying: float
    """Bytes that one thread copies, each counted once."""

    def figures(self) -> dict[str, float]:
        return {
            "a matrix product here, GFLOP/s": self.flops / 1e9,
            "read and checked here, GB/s": self.loading / 1e9,
            "copied here, GB/s": self.copying / 1e9,
        }


def measured_speed(threads: int) -> Speed:
    """Measure this machine, for some tenths of a second.

    Args:
        threads: of the matrix product.
    """
    rates = measured_rates(threads)
    return Speed(rates.flops, rates.loading, copy_rate())


def copy_rate() -> float:
    """Return the bytes per second that one thread copies in memory, more than caches hold."""
    source, target = torch.ones(COPIED_BYTES, dtype=torch.uint8), torch.empty(COPIED_BYTES, dtype=torch.uint8)
    before, best = torch.get_num_threads(), float("inf")
    torch.set_num_threads(1)
    try:
        for _ in range(TIMES):
            began = time.perf_counter()
            target.copy_(source)
            best = min(best, time.perf_counter() - began)
    finally:
        torch.set_num_threads(before)
    return COPIED_BYTES / best

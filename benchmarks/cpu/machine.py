"""Measures the rates of the machine at this moment: reading memory, and multiplying through torch."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

import torch

REPEATS = 3
READ_BYTES = 1 << 29
"""Bytes to read, far more than any cache holds."""
ROWS, INPUTS, OUTPUTS = 2048, 1024, 6144
"""The largest product of a Qwen3-0.6B layer: gate and up of a prompt of 2,048 tokens."""


@dataclass(frozen=True, slots=True)
class Rates:
    """The best rates of several tries."""

    read_bytes_per_second: float
    bfloat16_flop_per_second: float


class Probe:
    """Measures the rates, a tenth of a second each time.

    Args:
        threads: threads of torch in this process from now on.
        size: bytes to read, and the rows of the product; smaller ones for tests.
    """

    def __init__(self, threads: int, size: tuple[int, int] = (READ_BYTES, ROWS)) -> None:
        torch.set_num_threads(threads)
        read_bytes, self._rows = size
        self._memory = torch.ones(read_bytes // 4, dtype=torch.float32)
        self._x = torch.randn(self._rows, INPUTS).bfloat16()
        self._weight = torch.randn(OUTPUTS, INPUTS).bfloat16()

    @torch.inference_mode()
    def rates(self) -> Rates:
        multiply = _best(lambda: torch.nn.functional.linear(self._x, self._weight))
        read = _best(self._memory.sum)
        return Rates(self._memory.nbytes / read, 2 * self._rows * INPUTS * OUTPUTS / multiply)


def _best(call: Callable[[], object]) -> float:
    seconds = []
    for _ in range(REPEATS):
        start = time.perf_counter()
        call()
        seconds.append(time.perf_counter() - start)
    return min(seconds)

"""Measures the best rates of the machine: reading memory, and multiplying through torch."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

import torch

REPEATS = 7
READ_BYTES = 1 << 29
"""Bytes to read, far more than any cache holds."""
ROWS, INPUTS, OUTPUTS = 2048, 1024, 6144
"""The largest product of a Qwen3-0.6B layer: gate and up of a prompt of 2,048 tokens."""


@dataclass(frozen=True, slots=True)
class Rates:
    """The best rates of several tries."""

    read_bytes_per_second: float
    bfloat16_flop_per_second: float


def rates(threads: int) -> Rates:
    """Measure for some seconds."""
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        memory = torch.ones(READ_BYTES // 4, dtype=torch.float32)
        x, weight = (torch.randn(size, INPUTS).bfloat16() for size in (ROWS, OUTPUTS))
        packed = torch.ops.mkldnn._reorder_linear_weight(weight)
        products: tuple[Callable[[], object], ...] = (
            lambda: torch.nn.functional.linear(x, weight),
            lambda: torch.ops.mkldnn._linear_pointwise(x, packed, None, "none", [], ""),
        )
        with torch.inference_mode():
            multiply = min(_best(product) for product in products)
            read = _best(memory.sum)
    finally:
        torch.set_num_threads(before)
    return Rates(READ_BYTES / read, 2 * ROWS * INPUTS * OUTPUTS / multiply)


def _best(call: Callable[[], object]) -> float:
    seconds = []
    for _ in range(REPEATS):
        start = time.perf_counter()
        call()
        seconds.append(time.perf_counter() - start)
    return min(seconds)

"""Measures the best rates of the device: copied bytes and FLOP per second."""

from __future__ import annotations

from typing import Any

import torch

from benchmarks.on_gpu.clocks import seconds_each
from benchmarks.on_gpu.setting import Setting


def copy_rate(setting: Setting) -> float:
    """Return the bytes that a copy on the device reads and writes in a second."""
    count = setting.pick(4 << 30, 1 << 20)
    source = torch.empty(count, dtype=torch.uint8, device=setting.device)
    target = torch.empty_like(source)
    return 2 * count / seconds_each(lambda: target.copy_(source), setting.device, repeat=5)


def matmul_rate(setting: Setting) -> float:
    """Return the FLOP per second of a large square product on random data."""
    size = setting.pick(8192, 64)
    a, b = (torch.randn((size, size), device=setting.device).to(setting.dtype) for _ in range(2))
    out = torch.empty_like(a)
    return 2 * size**3 / seconds_each(lambda: torch.mm(a, b, out=out), setting.device, repeat=10)


def measure(setting: Setting) -> dict[str, Any]:
    """Return the device's name and its rates."""
    facts: dict[str, Any] = {"device": "cpu", "torch": torch.__version__}
    if setting.device.type == "cuda":
        properties = torch.cuda.get_device_properties(setting.device)
        facts = {
            "device": properties.name,
            "memory_bytes": properties.total_memory,
            "capability": f"{properties.major}.{properties.minor}",
            "torch": torch.__version__,
            "cuda": torch.version.cuda,
        }
    return {**facts, "copy_bytes_per_second": copy_rate(setting), "matmul_flops_per_second": matmul_rate(setting)}

"""Computes the tables of docs/long-contexts.md: the memory and the time of a context, from the formulae."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from benchmarks.long_context.cost import CostDevice, CostModel, decode_cost, hiding_chunk, prefill_cost
from sluice.types.footprint import KVSizes, OffloadSizes, device_footprint, stored_bytes

KIB, MIB, GIB = 1 << 10, 1 << 20, 1 << 30
K, M = 1 << 10, 1 << 20
LENGTHS = {"128K": 128 * K, "256K": 256 * K, "1M": M, "4M": 4 * M, "8M": 8 * M, "16M": 16 * M}
MODEL = CostModel(KVSizes(28, 8, 128, 2), num_heads=16, hidden_size=1024, inner_size=3072)
"""28 layers, 8 KV heads of 128, bfloat16, as Qwen3-0.6B and 1.7B have; the other sizes are those of 0.6B."""
CHUNK = 2048
STREAM = OffloadSizes(ring_blocks=8, group_blocks=4, block_tokens=1024, window_tokens=2 * CHUNK, page_tokens=64)
GPU = CostDevice(flops=80e12, copy_bandwidth=25e9, memory_bandwidth=0.9e12)
"""A 24 GB card with 165 TFLOP/s in bfloat16, PCIe 4 and 1 TB/s, at about half, four fifths and nine tenths of these."""

RECALL = CostModel(KVSizes(2, 1, 64, 2), num_heads=2, hidden_size=128, inner_size=64)
"""The small checkpoint that recalls exactly, in bfloat16."""
CPU = CostDevice(flops=180e9, copy_bandwidth=2e9, memory_bandwidth=10e9)
"""One thread of the measured two-core machine: 3.0 s for 32K tokens of `RECALL`, offloaded."""
CPU_CHUNK = 512
CPU_LENGTHS = ("256K", "1M", "4M", "8M", "16M")


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a table in Markdown."""
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def memory_table() -> str:
    """Return the memory of each part by length."""
    parts = device_footprint(MODEL.kv, 0, STREAM)
    on_device = parts.ring_bytes + parts.prefill_buffer_bytes
    rows = [
        (
            name,
            mib(parts.ring_bytes),
            mib(parts.prefill_buffer_bytes),
            mib(on_device),
            gib(stored_bytes(MODEL.kv, length, STREAM.page_tokens)),
            mib(length * MODEL.kv.layer_token_bytes),
        )
        for name, length in LENGTHS.items()
        if name != "256K"
    ]
    return table(("context", "ring", "window", "on the device", "host or disk", "of it, one layer"), rows)


def time_table(model: CostModel, device: CostDevice, chunk: int, lengths: Iterable[str] = ("4M", "8M", "16M")) -> str:
    """Return the times of a prefill and of a decoded token by length."""
    rows = []
    for name in lengths:
        prefill, decode = (
            prefill_cost(model, device, LENGTHS[name], chunk),
            decode_cost(model, device, LENGTHS[name]),
        )
        rows.append(
            (
                name,
                duration(prefill.compute_seconds),
                duration(prefill.copy_seconds),
                duration(prefill.seconds),
                amount(prefill.copied_bytes),
                duration(decode.seconds),
            )
        )
    return table(("context", "compute", "copies", "prefill", "copied", "a decoded token"), rows)


def hiding(model: CostModel, device: CostDevice) -> str:
    """Return the chunk size from which on copies hide, in words."""
    return f"{hiding_chunk(model, device):,.0f} tokens"


def mib(count: float) -> str:
    return f"{count / MIB:,.0f} MiB"


def gib(count: float) -> str:
    return f"{count / GIB:,.0f} GiB"


def amount(count: float) -> str:
    """Return copied bytes as TB or GB."""
    return f"{count / 1e12:,.0f} TB" if count >= 1e12 else f"{count / 1e9:,.0f} GB"


def duration(seconds: float) -> str:
    """Return a time in the largest unit in which it is at least 1."""
    for unit, size in (("days", 86400.0), ("h", 3600.0), ("min", 60.0)):
        if seconds >= size:
            return f"{seconds / size:,.1f} {unit}"
    return f"{seconds:,.1f} s"

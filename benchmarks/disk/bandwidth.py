"""Measures the read and write rates of the disk tier, and those of `dd` past the page cache."""

from __future__ import annotations

import os
import queue
import re
import subprocess
import time
from pathlib import Path
from typing import Any

import torch

from sluice.attention.base import LayerKV
from sluice.device.pages import DevicePages
from sluice.device.queues import plain_host_buffer
from sluice.device.transport import cpu_transport
from sluice.storage.checksums import best_checksum
from sluice.storage.copies import PageCopies
from sluice.storage.disk_tier import DiskTier
from sluice.storage.format import FileLayout, PageGeometry
from sluice.storage.opening import open_page_file
from sluice.types import BatchPlan, CopyDone, PageCopy, PageKey, Tier

LAYERS, HEADS, HEAD_DIM, PAGE_SIZE = 28, 8, 128, 32
"""Sizes of Qwen3-0.6B: 3.5 MiB a page."""
AT_ONCE = 32


def measure(folder: Path, size: int) -> dict[str, Any]:
    """Write and read `size` bytes by `dd` and through the tier, from the disk and from the page cache."""
    pages = size // (2 * LAYERS * HEADS * HEAD_DIM * PAGE_SIZE * 2)
    found: dict[str, Any] = {"bytes": size, **_dd(folder / "dd", size >> 22)}
    shape = (AT_ONCE, PAGE_SIZE, HEADS, HEAD_DIM)
    kv = [LayerKV(*(torch.randn(shape).bfloat16() for _ in range(2))) for _ in range(LAYERS)]
    device = DevicePages(kv)
    geometry = PageGeometry(
        "none",
        "benchmark",
        "bfloat16",
        "plain",
        PAGE_SIZE,
        LAYERS,
        HEADS,
        HEAD_DIM,
        device.part_bytes,
        best_checksum(),
    )
    path = folder / "bandwidth"
    opened = open_page_file(path, FileLayout(geometry, pages).file_bytes + 4096, geometry)
    done_queue: queue.SimpleQueue[tuple[CopyDone, ...]] = queue.SimpleQueue()
    disk = DiskTier(opened.file, done_queue.put)
    copies = PageCopies(device, None, disk, plain_host_buffer)
    stores = [PageCopy(slot, Tier.DEVICE, slot % AT_ONCE, Tier.DISK, slot, key=_key(slot)) for slot in range(pages)]
    began = time.perf_counter()
    checksums = _run(copies, done_queue, stores)
    found["tier_write_cached_MBps"] = _rate(size, began)
    _sync(path)
    found["tier_write_MBps"] = _rate(size, began)
    loads = [
        PageCopy(pages + slot, Tier.DISK, slot, Tier.DEVICE, slot % AT_ONCE, checksums[slot]) for slot in range(pages)
    ]
    for name in ("tier_read_MBps", "tier_read_cached_MBps"):
        began = time.perf_counter()
        _run(copies, done_queue, loads)
        found[name] = _rate(size, began)
    copies.close()
    path.unlink()
    print(f"  {found}", flush=True)
    return found


def _run(
    copies: PageCopies, done_queue: queue.SimpleQueue[tuple[CopyDone, ...]], wanted: list[PageCopy]
) -> dict[int, int]:
    """Run the copies, some at a time, as plans do. Returns checksums by ticket."""
    done: dict[int, int] = {}
    for first in range(0, len(wanted), AT_ONCE):
        batch = tuple(wanted[first : first + AT_ONCE])
        copies.begin(BatchPlan(0, (), (), copies=batch), cpu_transport()).wait()
        while not all(copy.ticket in done for copy in batch[: AT_ONCE // 2]):
            for each in done_queue.get():
                assert each.error is None, each
                done[each.ticket] = each.checksum
    while len(done) < len(wanted):
        done.update((each.ticket, each.checksum) for each in done_queue.get())
    return done


def _key(slot: int) -> PageKey:
    return PageKey(slot.to_bytes(16, "little"), b"", (slot,) * PAGE_SIZE, "")


def _dd(path: Path, blocks: int) -> dict[str, float]:
    write = ["dd", "if=/dev/zero", f"of={path}", "bs=4M", f"count={blocks}", "oflag=direct"]
    read = ["dd", f"if={path}", "of=/dev/null", "bs=4M", "iflag=direct"]
    found = {"dd_write_MBps": _dd_rate(write), "dd_read_MBps": _dd_rate(read)}
    path.unlink()
    return found


def _dd_rate(command: list[str]) -> float:
    run = subprocess.run(command, capture_output=True, text=True, check=True, env=os.environ | {"LC_ALL": "C"})
    match = re.search(r"(\d+) bytes.* copied, ([\d.]+) s", run.stderr)
    assert match is not None, run.stderr
    return round(int(match[1]) / float(match[2]) / 1e6)


def _sync(path: Path) -> None:
    """Write the file to the disk, and drop it from the page cache."""
    descriptor = os.open(path, os.O_RDWR)
    os.fsync(descriptor)
    os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
    os.close(descriptor)


def _rate(size: int, began: float) -> float:
    return round(size / (time.perf_counter() - began) / 1e6)

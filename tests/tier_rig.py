"""A device of random pages with tiers behind it, and the plans to move them about."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from page_files import keys
from sluice.attention.base import LayerKV, PagedKV
from sluice.attention.packed import PackedKV
from sluice.attention.spec import KVShape
from sluice.device.pages import DevicePages
from sluice.device.queues import DeviceQueue, DeviceQueues, Event, inline_queues, plain_host_buffer
from sluice.device.transport import Transport, cpu_transport, staged_transport
from sluice.kernels.cpu.library import Kernels
from sluice.storage.blocks import FileBlocks
from sluice.storage.checksums import best_checksum
from sluice.storage.copies import PageCopies
from sluice.storage.disk_tier import DiskTier
from sluice.storage.host_tier import HostTier
from sluice.storage.opening import Opened, open_page_file
from sluice.storage.page_file import PageFile
from sluice.storage.page_file_format import FileLayout, PageGeometry
from sluice.types import BatchPlan, CopyDone, PageCopy, Tier

LAYERS, HEADS, HEAD_DIM, PAGE_SIZE = 3, 2, 16, 16
PAGES, HOST_PAGES, DISK_PAGES = 5, 4, 6
PATIENCE = 30.0
"""Seconds after which a copy counts as lost."""


def plain_kv(dtype: torch.dtype, pages: int = PAGES) -> list[PagedKV]:
    shape = (pages, PAGE_SIZE, HEADS, HEAD_DIM)
    return [LayerKV(torch.zeros(shape, dtype=dtype), torch.zeros(shape, dtype=dtype)) for _ in range(LAYERS)]


def packed_kv(dtype: torch.dtype, kernels: Kernels, pages: int = PAGES) -> list[PagedKV]:
    return [
        PackedKV.empty(kernels, KVShape(pages, PAGE_SIZE, HEADS, HEAD_DIM, dtype, torch.device("cpu")))
        for _ in range(LAYERS)
    ]


def fill(kv: Sequence[PagedKV], page: int, seed: int) -> None:
    """Write noise, as a forward would."""
    generator = torch.Generator().manual_seed(seed)
    slots = torch.arange(page * PAGE_SIZE, (page + 1) * PAGE_SIZE)
    for layer in kv:
        k, v = (torch.randn(PAGE_SIZE, HEADS, HEAD_DIM, generator=generator) for _ in range(2))
        layer.store(slots, k.to(layer.k.dtype), v.to(layer.v.dtype))


def content(kv: Sequence[PagedKV], page: int) -> torch.Tensor:
    """What a page holds, as attention reads it."""
    return torch.stack([part for layer in kv for part in layer.gather(torch.tensor([page]))]).clone()


def geometry_of(pages: DevicePages, dtype: torch.dtype, layout: str = "plain") -> PageGeometry:
    return PageGeometry(
        model="abc",
        code="test",
        dtype=str(dtype).removeprefix("torch."),
        layout=layout,
        page_size=PAGE_SIZE,
        num_layers=LAYERS,
        num_kv_heads=HEADS,
        head_dim=HEAD_DIM,
        part_bytes=pages.part_bytes,
        checksum=best_checksum(),
    )


@dataclass
class LockedEvent:
    """An event that several threads may ask for."""

    inner: Event
    lock: threading.RLock

    def query(self) -> bool:
        with self.lock:
            return self.inner.query()


@dataclass
class LockedQueue:
    """A queue of a fake device that several threads may use."""

    inner: DeviceQueue
    lock: threading.RLock

    def run(self, work: Callable[[], None]) -> None:
        with self.lock:
            self.inner.run(work)

    def wait(self, event: Event) -> None:
        assert isinstance(event, LockedEvent)
        with self.lock:
            self.inner.wait(event.inner)

    def record(self) -> LockedEvent:
        with self.lock:
            return LockedEvent(self.inner.record(), self.lock)


@dataclass
class Rig:
    """Everything between a plan's copies and a disk."""

    kv: Sequence[PagedKV]
    copies: PageCopies
    reports: queue.SimpleQueue[tuple[CopyDone, ...]]
    transport: Transport
    opened: Opened | None
    step: int = 0

    @classmethod
    def of(
        cls, kv: Sequence[PagedKV], path: Path | None, *, queues: DeviceQueues | None = None, blocks: Any = None
    ) -> Rig:
        """
        Args:
            path: of the page file; None: no disk tier.
            queues: queues of the device; None: those of a CPU.
            blocks: makes something else of the file's blocks.
        """
        pages, reports = DevicePages(kv), queue.SimpleQueue()
        host = HostTier(HOST_PAGES, pages, plain_host_buffer)
        opened = disk = None
        if path is not None:
            geometry = geometry_of(pages, kv[0].k.dtype)
            opened = open_page_file(path, FileLayout(geometry, DISK_PAGES).file_bytes + 4096, geometry)
            file = opened.file if blocks is None else PageFile(blocks(_blocks_of(opened.file)), opened.file.layout, {})
            disk = DiskTier(file, reports.put)
        transport = cpu_transport()
        if queues is not None:
            lock = threading.RLock()
            locked = DeviceQueues(*(LockedQueue(each, lock) for each in queues))
            transport = staged_transport(locked, torch.device("cpu"), plain_host_buffer, 2)
        loading = None if queues is None else inline_queues().inputs
        copies = PageCopies(pages, host, disk, plain_host_buffer, loading)
        return cls(kv, copies, reports, transport, opened)

    def run(self, *copies: PageCopy, dropped: tuple[int, ...] = ()) -> tuple[CopyDone, ...]:
        """Begin copies and wait for all of them: how they ended, by ticket."""
        plan = BatchPlan(self.step, (), (), copies=copies, dropped=dropped)
        self.step += 1
        self.copies.check(plan)
        done = [*self.copies.begin(plan, self.transport).wait()]
        while len(done) < len(copies):
            done += self.reports.get(timeout=PATIENCE)
        assert len(done) == len(copies)
        return tuple(sorted(done))

    def close(self) -> None:
        self.copies.close()


def _blocks_of(file: PageFile) -> FileBlocks:
    return file._blocks


def store(ticket: int, source: Tier, page: int, target: Tier, slot: int, seed: int = 0) -> PageCopy:
    """A store; on a disk under the key of a prompt of its own."""
    key = keys([seed] * PAGE_SIZE, page_size=PAGE_SIZE)[0] if target is Tier.DISK else None
    return PageCopy(ticket, source, page, target, slot, key=key)


def load(ticket: int, source: Tier, slot: int, page: int, checksum: int) -> PageCopy:
    return PageCopy(ticket, source, slot, Tier.DEVICE, page, checksum)

"""Offloaded requests worked by hand: a tier that is a dictionary, and a driver that stores pages and plans slices."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import torch

from page_files import PATIENCE
from sluice.attention.base import Attention, PagedKV
from sluice.runner.device_state import DeviceShape, DeviceState, KVMaker
from sluice.runner.forwards import Model
from sluice.runner.offload.loaders import DiskLoader
from sluice.runner.offload.offloader import Offloader, RingShape
from sluice.runner.offload.sparse import SparsePolicy
from sluice.types import Chunk, ChunkSlice

Parts = tuple[bytes, bytes]


def _opened() -> threading.Event:
    event = threading.Event()
    event.set()
    return event


@dataclass
class DictPages:
    """Pages of a `PageFile`, in a dictionary."""

    parts: dict[tuple[int, int], Parts] = field(default_factory=dict)
    """(page, layer) -> keys and values."""
    lost: set[int] = field(default_factory=set)
    opened: threading.Event = field(default_factory=_opened)
    """Reads wait for it."""
    waits: threading.Event = field(default_factory=threading.Event)
    """A read does."""
    reads: list[tuple[int, int]] = field(default_factory=list)

    def read_layer(self, pages: Sequence[int], layer: int, k: memoryview, v: memoryview) -> None:
        if not self.opened.is_set():
            self.waits.set()
            self.opened.wait()
        size = k.nbytes // len(pages)
        for place, page in enumerate(pages):
            if page in self.lost:
                raise OSError(5, "Input/output error")
            self.reads.append((page, layer))
            for memory, part in zip((k, v), self.parts[page, layer], strict=True):
                memory[place * size : (place + 1) * size] = part

    def store(self, page: int, kv: Sequence[PagedKV], place: int) -> None:
        for layer, pages in enumerate(kv):
            self.parts[page, layer] = _bytes(pages.k[place]), _bytes(pages.v[place])


class ReadFailed(Exception):
    """The loader reported a block that cannot be read."""


@dataclass
class Driver:
    """One offloaded request on pages 1, 2, ... of a device, in slot 0."""

    offloader: Offloader
    state: DeviceState
    stored: DictPages
    ring: RingShape
    reports: queue.SimpleQueue[tuple[int, int, str | None, int | None]]
    split: Callable[[int], int] = lambda left: left
    """Most work items of the next slice, of those left."""
    base: int = 0
    rows: int = 0
    """Pages that the offloader knows."""
    window: list[int] = field(default_factory=list)
    """Pages on the device of the tokens from `base` on."""
    slices: int = 0
    """Slices that were run."""
    steps: int = 0
    """Chunks that were begun."""

    @classmethod
    def of(
        cls,
        model: Model,
        shape: DeviceShape,
        attention: Attention,
        new_kv: KVMaker,
        ring: RingShape,
        policy: SparsePolicy | None = None,
        split: Callable[[int], int] = lambda left: left,
        hidden_size: int = 1,
    ) -> Driver:
        state, stored = DeviceState(shape, new_kv), DictPages()
        reports: queue.SimpleQueue[tuple[int, int, str | None, int | None]] = queue.SimpleQueue()

        def loader(kv: PagedKV, block_pages: int) -> DiskLoader[None]:
            return DiskLoader(stored, kv, block_pages, lambda *report: reports.put(report))

        offloader = Offloader(model, state, attention, new_kv, loader, ring, hidden_size, policy)
        for kv in (*state.kv, offloader.ring_kv):
            kv.k.fill_(torch.nan)
            kv.v.fill_(torch.nan)
        return cls(offloader, state, stored, ring, reports, split)

    def chunk(
        self,
        tokens: Sequence[int],
        start: int,
        *,
        samples: bool = True,
        is_decode: bool = False,
        num_drafts: int = 0,
        right: int = 0,
        most_blocks: int | None = None,
        wide_layers: int = 0,
    ) -> torch.Tensor:
        """Run a chunk in slices of at most what `split` says, and store the pages that it fills with tokens that are
        right. Return its hidden states.

        Args:
            num_drafts: of the tokens.
            right: how many of the drafts are.
            most_blocks: blocks that are planned at most, but for the first `wide_layers`; None: all.

        Raises:
            ReadFailed: a block that it attends to cannot be read.
        """
        size, end = self.state.shape.page_size, start + len(tokens)
        while len(self.window) * size < end - self.base:
            free = set(range(self.state.shape.num_pages)) - set(self.window)
            self.window.append(max(free))
        blocks = -(-self.base // (size * self.ring.block_pages))
        most = blocks if most_blocks is None else min(blocks, most_blocks)
        group, others = self.ring.group_of(is_decode=is_decode), len(self.state.kv) - wide_layers
        total = wide_layers * (group.items(blocks) + 1) + others * (group.items(most) + 1)
        self.steps += 1
        part = ChunkSlice(
            Chunk(0, 0, start, len(tokens), tuple(tokens), (), samples, num_drafts=num_drafts),
            (),
            self.base,
            tuple(self.window),
            first=0,
            stop=0,
            total=total,
            is_decode=is_decode,
        )
        ready, hidden = 0 if blocks else total, None
        if blocks:
            self.run(part)
        while hidden is None:
            while ready == part.stop:
                ready = self.reported()
            stop = min(ready, part.stop + self.split(total - part.stop))
            part = part._replace(first=part.stop, stop=stop)
            hidden = self.run(part)
        while self.base + size <= end - num_drafts + right:
            self.stored.store(self.base // size, self.state.kv, self.window.pop(0))
            self.base += size
        return hidden

    def begin_again(self) -> None:
        """Give the slot to another request, whose pages can be read."""
        self.stored.lost = set()
        self.base, self.rows, self.window = 0, 0, []
        self.offloader.open_slots([0])

    def run(self, part: ChunkSlice) -> torch.Tensor | None:
        """Run a slice, whose pages on the tier the offloader knows then."""
        part = part._replace(stored_pages=tuple(range(self.rows, part.base // self.state.shape.page_size)))
        self.rows = max(self.rows, part.base // self.state.shape.page_size)
        self.slices += 1
        return self.offloader.run(self.steps, part)

    def reported(self) -> int:
        """Wait for the next report. Return how many work items of the chunk may be done."""
        while True:
            step, ready, error, _ = self.reports.get(timeout=PATIENCE)
            if step == self.steps:
                if error is not None:
                    raise ReadFailed(error)
                return ready


def _bytes(tensor: torch.Tensor) -> bytes:
    return tensor.flatten().view(torch.uint8).numpy().tobytes()

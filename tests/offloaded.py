"""Offloaded requests worked by hand: a tier that is a dictionary, and a driver that stores pages and lays out parts."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import torch

from sluice.attention.base import Attention, PagedKV
from sluice.runner.device_state import DeviceShape, DeviceState, KVMaker
from sluice.runner.forwards import Model
from sluice.runner.offload.loaders import ThreadLoader
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
    """`StoredPages` in a dictionary."""

    parts: dict[tuple[int, int], Parts] = field(default_factory=dict)
    """(page, layer) -> keys and values."""
    lost: set[int] = field(default_factory=set)
    opened: threading.Event = field(default_factory=_opened)
    """Reads wait for it."""
    waits: threading.Event = field(default_factory=threading.Event)
    """A read does."""
    reads: list[tuple[int, int]] = field(default_factory=list)

    def read_layer(self, page: int, layer: int, k: memoryview, v: memoryview) -> None:
        if not self.opened.is_set():
            self.waits.set()
            self.opened.wait()
        if page in self.lost:
            raise OSError(5, "Input/output error")
        self.reads.append((page, layer))
        k[:], v[:] = self.parts[page, layer]

    def store(self, page: int, kv: Sequence[PagedKV], place: int) -> None:
        for layer, pages in enumerate(kv):
            self.parts[page, layer] = _bytes(pages.k[place]), _bytes(pages.v[place])


@dataclass
class Driver:
    """One offloaded request on pages 1, 2, ... of a device, in slot 0."""

    streamer: Offloader
    state: DeviceState
    stored: DictPages
    ring: RingShape
    split: Callable[[int], int] = lambda left: left
    """Units of the next part, of those left."""
    base: int = 0
    rows: int = 0
    """Pages that the streamer was told of."""
    window: list[int] = field(default_factory=list)
    """Places on the device of the tokens from `base` on."""
    parts: int = 0
    unfinished: list[int] = field(default_factory=list)
    """After each part."""
    after_part: Callable[[], object] = lambda: None

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

        def loader(kv: PagedKV, block_pages: int) -> ThreadLoader[None]:
            return ThreadLoader(stored, kv, block_pages)

        streamer = Offloader(model, state, attention, new_kv, loader, ring, hidden_size, policy)
        for kv in (*state.kv, streamer.ring_kv):
            kv.k.fill_(torch.nan)
            kv.v.fill_(torch.nan)
        return cls(streamer, state, stored, ring, split)

    def chunk(
        self, tokens: Sequence[int], start: int, *, samples: bool = True, is_decode: bool = False
    ) -> torch.Tensor:
        """Run a chunk, in as many parts as `split` says, and store the pages that it fills. The hidden states."""
        size, end = self.state.shape.page_size, start + len(tokens)
        while len(self.window) * size < end - self.base:
            free = set(range(self.state.shape.num_pages)) - set(self.window)
            self.window.append(max(free))
        chunk = Chunk(0, 0, start, len(tokens), tuple(tokens), (), samples)
        blocks = -(-self.base // (size * self.ring.block_pages))
        total = len(self.state.kv) * (-(-blocks // self.ring.group_blocks) + 1)
        first, unfinished = 0, 0
        new_rows = tuple(range(self.rows, self.base // size))
        while True:
            stop = first if unfinished else first + self.split(total - first)
            part = ChunkSlice(chunk, new_rows, self.base, tuple(self.window), first, stop, total, is_decode)
            hidden, unfinished = self.streamer.run(part)
            self.rows, new_rows, first = max(self.rows, self.base // size), (), stop
            self.parts += 1
            self.unfinished.append(unfinished)
            self.after_part()
            if hidden is not None:
                break
        while self.base + size <= end:
            self.stored.store(self.base // size, self.state.kv, self.window.pop(0))
            self.base += size
        return hidden


def _bytes(tensor: torch.Tensor) -> bytes:
    return tensor.flatten().view(torch.uint8).numpy().tobytes()

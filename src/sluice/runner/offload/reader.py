"""RingReader: the blocks a chunk attends to, in order, each in a buffer of the ring when its turn comes."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from itertools import chain
from typing import Generic, NamedTuple, TypeVar

from sluice.kv.ring import DeviceRing
from sluice.runner.offload.loaders import BlockLoad, Loader

Handle = TypeVar("Handle")
Fence = TypeVar("Fence")


class _Started(NamedTuple, Generic[Handle]):
    ticket: int
    load: BlockLoad
    handle: Handle


class LoadedBlock(NamedTuple):
    """A block that may be read until it is released."""

    ticket: int
    buffer: int
    load: BlockLoad


class RingReader(Generic[Handle, Fence]):
    """Keeps a load under way into every free buffer of the ring. Blocks are read in the order of their loads."""

    def __init__(self, ring: DeviceRing[Fence], loader: Loader[Handle, Fence]) -> None:
        self.ring = ring
        self._loader = loader
        self._expected: Iterator[BlockLoad] = iter(())
        self._started: deque[_Started[Handle]] = deque()
        self._in_use: set[int] = set()

    def expect(self, loads: Iterable[BlockLoad]) -> None:
        """Load these behind those expected before, as buffers come free."""
        self._expected = chain(self._expected, loads)
        self._start()

    def next(self) -> LoadedBlock:
        """Return the next block, which what is computed from now on finds in its buffer."""
        ticket, load, handle = self._started.popleft()
        self._loader.finish(handle)
        self.ring.loaded(ticket)
        self._in_use.add(ticket)
        return LoadedBlock(ticket, self.ring.use(ticket), load)

    def release(self, blocks: Iterable[LoadedBlock]) -> None:
        """Give back blocks that only what was computed so far may still be reading."""
        fence = self._loader.fence()
        for block in blocks:
            self._in_use.remove(block.ticket)
            self.ring.release(block.ticket, fence)
        self._start()

    def abandon(self) -> None:
        """Drop everything that is expected, loading or in use, and wait for nothing: the next load into a buffer comes
        behind the one that was to fill it."""
        self._expected = iter(())
        for ticket in self._in_use:
            self.ring.release(ticket, self._loader.fence())
        self._in_use.clear()
        while self._started:
            ticket, _, handle = self._started.popleft()
            self.ring.abandon(ticket)
            self._loader.forget(handle)
            self.ring.loaded(ticket)

    def _start(self) -> None:
        while self.ring.num_free:
            load = next(self._expected, None)
            if load is None:
                return
            taken = self.ring.take()
            assert taken is not None
            handle = self._loader.start(load, taken.buffer, taken.fence)
            self._started.append(_Started(taken.ticket, load, handle))

"""RingReader: the blocks a chunk attends to, in order, each in a ring slot when its turn comes."""

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


class Arrived(NamedTuple):
    """A block that may be read until it is released."""

    ticket: int
    slot: int
    load: BlockLoad


class RingReader(Generic[Handle, Fence]):
    """Keeps as many loads under way as the ring has slots; the order of loads is the order of reads."""

    def __init__(self, ring: DeviceRing[Fence], loader: Loader[Handle, Fence]) -> None:
        self.ring = ring
        self._loader = loader
        self._expected: Iterator[BlockLoad] = iter(())
        self._started: deque[_Started[Handle]] = deque()
        self._reading: set[int] = set()

    def expect(self, loads: Iterable[BlockLoad]) -> None:
        """These will be read, behind those expected before. Their loads start as slots come free."""
        self._expected = chain(self._expected, loads)
        self._start()

    def has_next(self, seconds: float) -> bool:
        """The next block has come.

        Args:
            seconds: to wait for it, at most.
        """
        self._start()
        assert self._started, "nothing is expected, or every slot is being read"
        return self._loader.has_come(self._started[0].handle, seconds)

    def next(self) -> Arrived:
        """The next block, which has come.

        Raises:
            Exception: it could not be loaded.
        """
        ticket, load, handle = self._started.popleft()
        try:
            self._loader.finish(handle)
        except Exception:
            self.ring.abandon(ticket)
            self.ring.landed(ticket)
            raise
        self.ring.landed(ticket)
        self._reading.add(ticket)
        return Arrived(ticket, self.ring.use(ticket), load)

    def release(self, arrived: Iterable[Arrived]) -> None:
        """They were read; what was computed so far may still be reading them."""
        fence = self._loader.fence()
        for each in arrived:
            self._reading.remove(each.ticket)
            self.ring.release(each.ticket, fence)
        self._start()

    def abandon(self) -> None:
        """Nothing that is expected or was started will be read. Waits for nothing: who fills a slot next comes behind
        the load that was to fill it."""
        self._expected = iter(())
        for ticket in self._reading:
            self.ring.release(ticket, self._loader.fence())
        self._reading.clear()
        while self._started:
            ticket, _, handle = self._started.popleft()
            self.ring.abandon(ticket)
            self._loader.forget(handle)
            self.ring.landed(ticket)

    def _start(self) -> None:
        while self.ring.num_free:
            load = next(self._expected, None)
            if load is None:
                return
            taken = self.ring.take()
            assert taken is not None
            self._started.append(_Started(taken.ticket, load, self._loader.start(load, taken.slot, taken.fence)))

"""Where the disk's thread finds the bytes of a store, and where it puts those of a load."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import torch

from sluice.device.pages import DevicePages
from sluice.device.streams import Event, Stream
from sluice.device.waiting import noop, wait_until
from sluice.tiers.page_buffers import PageBuffers, views


class Source(Protocol):
    """Where the bytes of a store are."""

    def parts(self) -> Sequence[memoryview]:
        """The bytes; waits until they have arrived."""
        ...

    def free(self) -> None:
        """They were written, or never will be."""
        ...


class Target(Protocol):
    """Where the bytes of a load go."""

    def parts(self) -> Sequence[memoryview]:
        """Memory to fill."""
        ...

    def finish(self) -> None:
        """It is filled; waits until the page is where it belongs."""
        ...

    def free(self) -> None:
        """The load has ended, well or not."""
        ...


@dataclass(frozen=True, slots=True)
class Staged:
    """A page on its way to a disk."""

    buffer: torch.Tensor
    buffers: PageBuffers
    arrived: Event
    """The buffer is filled."""

    def parts(self) -> Sequence[memoryview]:
        """See `Source.parts`."""
        if not self.arrived.query():
            wait_until(self.arrived.query, noop)
        return views(self.buffer)

    def free(self) -> None:
        """See `Source.free`."""
        self.buffers.give(self.buffer)


@dataclass(frozen=True, slots=True)
class InPlace:
    """A page of a CPU, read straight into."""

    pages: DevicePages
    page: int

    def parts(self) -> Sequence[memoryview]:
        """See `Target.parts`."""
        return self.pages.views(self.page)

    def finish(self) -> None:
        """See `Target.finish`."""

    def free(self) -> None:
        """See `Target.free`."""


@dataclass(slots=True)
class ThroughBuffer:
    """A page of a GPU, read into a buffer and copied from there."""

    pages: DevicePages
    page: int
    buffers: PageBuffers
    stream: Stream
    free_from: Event
    """Whoever had the page before, a store of it included, is done with it."""
    buffer: torch.Tensor | None = None

    def parts(self) -> Sequence[memoryview]:
        """See `Target.parts`."""
        self.buffer = self.buffers.take()
        return views(self.buffer)

    def finish(self) -> None:
        """See `Target.finish`."""
        buffer = self.buffer
        assert buffer is not None, "nothing was read"
        self.stream.wait(self.free_from)
        self.stream.run(lambda: self.pages.copy_in(self.page, buffer))
        event = self.stream.record()
        if not event.query():
            wait_until(event.query, noop)

    def free(self) -> None:
        """See `Target.free`."""
        if self.buffer is not None:
            self.buffers.give(self.buffer)

"""Queues of work on a device, and the order between them.

A step is work on three queues, which the device may run at the same time:

    inputs    what the host laid out travels to the device
    compute   the forward and the sampling: steps follow each other here, with no gap that the host makes
    results   what was sampled travels back

Nothing but an event orders one queue behind another, and the host behind any of them. `InlineStream` is a device that
is done before it is asked; `fakes.LateStreams` one that does everything as late, or as early, as the events allow.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol

import torch


class Event(Protocol):
    """A point on a queue."""

    def query(self) -> bool:
        """Everything queued before it is done. Waits for nothing."""
        ...


class Stream(Protocol):
    """A queue: what is given to it runs in order."""

    def run(self, work: Callable[[], None]) -> None:
        """Queue what `work` does to tensors. The host's part of it may happen now or later."""
        ...

    def wait(self, event: Event) -> None:
        """Whatever is queued from now on runs after `event`."""
        ...

    def record(self) -> Event:
        """The event that everything queued so far is done."""
        ...


class DoneEvent:
    """Of work that was done when it was queued."""

    def query(self) -> bool:
        """See `Event.query`."""
        return True


class InlineStream:
    """Runs work at once: a CPU."""

    def run(self, work: Callable[[], None]) -> None:
        """See `Stream.run`."""
        work()

    def wait(self, event: Event) -> None:
        """See `Stream.wait`."""

    def record(self) -> DoneEvent:
        """See `Stream.record`."""
        return DoneEvent()


class CudaStream:
    """A stream of a CUDA device.

    Args:
        stream: of the device; it does not wait for the default stream.
    """

    def __init__(self, stream: torch.cuda.Stream) -> None:
        self._stream = stream

    def run(self, work: Callable[[], None]) -> None:
        """See `Stream.run`."""
        with torch.cuda.stream(self._stream):
            work()

    def wait(self, event: Event) -> None:
        """See `Stream.wait`."""
        if isinstance(event, torch.cuda.Event):
            self._stream.wait_event(event)
        else:
            assert event.query(), f"{event} is of no stream of this device and not done"

    def record(self) -> torch.cuda.Event:
        """See `Stream.record`."""
        return self._stream.record_event()


class Streams(NamedTuple):
    """The queues of one runner."""

    inputs: Stream
    compute: Stream
    results: Stream


HostBuffers = Callable[[Sequence[int], torch.dtype], torch.Tensor]
"""Makes an uninitialised tensor of a shape and dtype on the host, from and to which a stream can copy."""


def inline_streams() -> Streams:
    """Those of a CPU."""
    stream = InlineStream()
    return Streams(stream, stream, stream)


def cuda_streams(device: torch.device) -> Streams:
    """Three streams of a CUDA device, behind everything that its default stream was given so far."""
    torch.cuda.synchronize(device)
    # Of a higher priority: small copies that others wait for must not queue behind a forward.
    inputs, results = (CudaStream(torch.cuda.Stream(device, priority=-1)) for _ in range(2))
    return Streams(inputs, CudaStream(torch.cuda.Stream(device)), results)


def plain_host_buffer(shape: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
    """See `HostBuffers`; of a CPU."""
    return torch.empty(tuple(shape), dtype=dtype)


def pinned_host_buffer(shape: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
    """See `HostBuffers`; copies from or to it do not hold the host up. Torch uses it again when they are done."""
    return torch.empty(tuple(shape), dtype=dtype, pin_memory=True)

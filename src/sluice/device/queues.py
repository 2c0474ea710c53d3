"""Queues of work on a device, and the order between them.

A step is work on three queues, which the device may run at the same time:

    inputs    copies what the host laid out to the device
    compute   runs the forward and the sampling: steps follow each other here, with no gap that the host makes
    results   copies what was sampled to the host

Only events order one queue behind another, and the host behind any of them. An `InlineQueue` has finished all work by
the time it returns; `sluice.testing.device.LateQueue` runs everything as late, or as early, as the events allow.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol

import torch

TICK_SECONDS = 1.0
"""Time between two calls of `tick` while the host waits."""
SPIN_SECONDS = 0.05
"""Time the host waits without a pause: as long as most steps take. After it, a nap of `NAP_SECONDS` adds little."""
NAP_SECONDS = 0.0005


class Event(Protocol):
    """A point on a queue."""

    def query(self) -> bool:
        """Return whether everything queued before it is done. Does not wait."""
        ...


class DeviceQueue(Protocol):
    """Work that runs in the order in which it was queued."""

    def run(self, work: Callable[[], None]) -> None:
        """Queue what `work` does to tensors. `work` itself may be called now or later."""
        ...

    def wait(self, event: Event) -> None:
        """Let everything queued from now on run after `event`."""
        ...

    def record(self) -> Event:
        """Return the event that everything queued so far is done."""
        ...


class DoneEvent:
    """The event of work that was done by the time it was queued."""

    def query(self) -> bool:
        return True


class InlineQueue:
    """A queue that runs work at once, for a CPU."""

    def run(self, work: Callable[[], None]) -> None:
        work()

    def wait(self, event: Event) -> None:
        """Return: the work before the event is done."""

    def record(self) -> DoneEvent:
        return DoneEvent()


class CudaQueue:
    """A CUDA stream as a queue.

    Args:
        stream: a CUDA stream that does not wait for the default one.
    """

    def __init__(self, stream: torch.cuda.Stream) -> None:
        self._stream = stream

    def run(self, work: Callable[[], None]) -> None:
        with torch.cuda.stream(self._stream):
            work()

    def wait(self, event: Event) -> None:
        if isinstance(event, torch.cuda.Event):
            self._stream.wait_event(event)
        else:
            assert event.query(), f"{event} is of no queue of this device and not done"

    def record(self) -> torch.cuda.Event:
        event: torch.cuda.Event = self._stream.record_event()
        return event


class DeviceQueues(NamedTuple):
    """The queues of one runner."""

    inputs: DeviceQueue
    compute: DeviceQueue
    results: DeviceQueue


HostBuffers = Callable[[Sequence[int], torch.dtype], torch.Tensor]
"""Makes an uninitialised tensor of a shape and dtype on the host, from and to which a queue can copy."""


def inline_queues() -> DeviceQueues:
    """Return the queues of a CPU."""
    queue = InlineQueue()
    return DeviceQueues(queue, queue, queue)


def cuda_queues(device: torch.device) -> DeviceQueues:
    """Return three queues of a CUDA device, once its default stream has done what it was given so far."""
    torch.cuda.synchronize(device)
    # Of a higher priority: small copies that others wait for must not queue behind a forward.
    inputs, results = (CudaQueue(torch.cuda.Stream(device, priority=-1)) for _ in range(2))
    return DeviceQueues(inputs, CudaQueue(torch.cuda.Stream(device)), results)


def plain_host_buffer(shape: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
    """Return a `HostBuffers` tensor for a CPU."""
    return torch.empty(tuple(shape), dtype=dtype)


def pinned_host_buffer(shape: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
    """Return a `HostBuffers` tensor in pinned memory: copies from or to it do not block the host.

    Torch reuses the memory once these copies are done.
    """
    return torch.empty(tuple(shape), dtype=dtype, pin_memory=True)


def noop() -> None:
    """Do nothing."""


def wait_until(is_done: Callable[[], bool], tick: Callable[[], None] = noop) -> None:
    """Block until `is_done` returns true.

    Args:
        tick: called at the beginning and every `TICK_SECONDS` until then: the engine shows that it is alive.
    """
    began = ticked = time.monotonic()
    tick()
    while not is_done():
        now = time.monotonic()
        if now - ticked >= TICK_SECONDS:
            ticked = now
            tick()
        time.sleep(0 if now - began < SPIN_SECONDS else NAP_SECONDS)

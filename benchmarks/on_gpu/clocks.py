"""Times work on the device without waiting for it."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import NamedTuple, Protocol

import torch

from sluice.device.queues import DeviceQueue, Event
from sluice.runner.graphs import CudaCapture

CALLS = 8
"""Number of calls in one graph."""


class Mark(Protocol):
    """A moment on the device."""

    def seconds_until(self, later: Mark) -> float:
        """Return the seconds to a later mark, once the device has passed both."""
        ...


class CudaMark:
    """A mark on the current CUDA stream."""

    def __init__(self) -> None:
        self.event = torch.cuda.Event(enable_timing=True)
        self.event.record()

    def seconds_until(self, later: Mark) -> float:
        assert isinstance(later, CudaMark)
        return self.event.elapsed_time(later.event) / 1000


class HostMark:
    """A mark on a device whose work is done when its call returns."""

    def __init__(self) -> None:
        self.at = time.perf_counter()

    def seconds_until(self, later: Mark) -> float:
        assert isinstance(later, HostMark)
        return later.at - self.at


def mark_of(device: torch.device) -> Callable[[], Mark]:
    """Return a function that makes marks on a device."""
    return CudaMark if device.type == "cuda" else HostMark


def finish(device: torch.device) -> None:
    """Wait until the device is idle."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


class Span(NamedTuple):
    """A piece of work on the device."""

    begin: Mark
    end: Mark

    @property
    def seconds(self) -> float:
        return self.begin.seconds_until(self.end)


class MarkedQueue:
    """A queue that marks when each piece of work begins and ends.

    Args:
        inner: the queue that runs the work.
        mark: makes a mark on the queue.
    """

    def __init__(self, inner: DeviceQueue, mark: Callable[[], Mark]) -> None:
        self._inner = inner
        self._mark = mark
        self.spans: list[Span] = []

    def run(self, work: Callable[[], None]) -> None:

        def marked() -> None:
            begin = self._mark()
            work()
            self.spans.append(Span(begin, self._mark()))

        self._inner.run(marked)

    def wait(self, event: Event) -> None:
        self._inner.wait(event)

    def record(self) -> Event:
        return self._inner.record()


def idle_share(spans: Sequence[Span]) -> float:
    """Return the share of the time from the first begin to the last end in which no work ran."""
    whole = spans[0].begin.seconds_until(spans[-1].end)
    return max(0.0, 1 - sum(span.seconds for span in spans) / whole)


def seconds_each(work: Callable[[], object], device: torch.device, *, repeat: int, warm_up: int = 3) -> float:
    """Return the median time of a call on the device, of several calls queued at once."""
    mark = mark_of(device)
    for _ in range(warm_up):
        work()
    marks = [mark()]
    for _ in range(repeat):
        work()
        marks.append(mark())
    finish(device)
    return statistics.median(a.seconds_until(b) for a, b in pairwise(marks))


def seconds_queued(work: Callable[[], torch.Tensor], device: torch.device) -> float:
    """Return the time of one call on the device, without the host's time: several are captured in one graph."""
    if device.type != "cuda":
        return seconds_each(work, device, repeat=3, warm_up=1)

    def several() -> torch.Tensor:
        for _ in range(CALLS - 1):
            work()
        return work()

    stream = torch.cuda.Stream(device)
    torch.cuda.synchronize(device)
    with torch.cuda.stream(stream):
        replay = CudaCapture(device)(several).replay
        return seconds_each(replay, device, repeat=20) / CALLS

"""When the device began and ended what it was given, without waiting for it."""

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
"""Of one graph."""


class Mark(Protocol):
    """A moment on the device."""

    def seconds_until(self, later: Mark) -> float:
        """Known once both are past."""
        ...


class CudaMark:
    """See `Mark`; on the current stream."""

    def __init__(self) -> None:
        self.event = torch.cuda.Event(enable_timing=True)
        self.event.record()

    def seconds_until(self, later: Mark) -> float:
        """See `Mark.seconds_until`."""
        assert isinstance(later, CudaMark)
        return self.event.elapsed_time(later.event) / 1000


class HostMark:
    """See `Mark`; of a device that is done when it was asked."""

    def __init__(self) -> None:
        self.at = time.perf_counter()

    def seconds_until(self, later: Mark) -> float:
        """See `Mark.seconds_until`."""
        assert isinstance(later, HostMark)
        return later.at - self.at


def mark_of(device: torch.device) -> Callable[[], Mark]:
    """What makes marks on a device."""
    return CudaMark if device.type == "cuda" else HostMark


def finish(device: torch.device) -> None:
    """Wait until the device has nothing to do."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


class Span(NamedTuple):
    """One piece of work on the device."""

    begin: Mark
    end: Mark

    @property
    def seconds(self) -> float:
        return self.begin.seconds_until(self.end)


class MarkedQueue:
    """A stream that marks when each piece of work began and ended.

    Args:
        inner: does the work.
        mark: makes a mark where the work is queued.
    """

    def __init__(self, inner: DeviceQueue, mark: Callable[[], Mark]) -> None:
        self._inner = inner
        self._mark = mark
        self.spans: list[Span] = []

    def run(self, work: Callable[[], None]) -> None:
        """See `DeviceQueue.run`."""

        def marked() -> None:
            begin = self._mark()
            work()
            self.spans.append(Span(begin, self._mark()))

        self._inner.run(marked)

    def wait(self, event: Event) -> None:
        """See `DeviceQueue.wait`."""
        self._inner.wait(event)

    def record(self) -> Event:
        """See `DeviceQueue.record`."""
        return self._inner.record()


def idle_share(spans: Sequence[Span]) -> float:
    """The part of the time from the first begin to the last end in which none of the work ran."""
    whole = spans[0].begin.seconds_until(spans[-1].end)
    return max(0.0, 1 - sum(span.seconds for span in spans) / whole)


def seconds_each(work: Callable[[], object], device: torch.device, *, repeat: int, warm_up: int = 3) -> float:
    """The median time on the device of one call of several, all queued at once."""
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
    """Of one call on the device, without what the host takes for it: several are captured in one graph."""
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

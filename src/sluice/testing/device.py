"""PUBLIC fakes of a device: queues that keep every promise of a real device's and no other.

LateQueue      does work as late, or as early, as the events between its queues allow
recorded_steps replays what was captured with the very tensors of the capture, as a CUDA graph does
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from sluice.device.queues import DeviceQueues, Event
from sluice.runner.graphs import Captured


@dataclass(frozen=True)
class LateEvent:
    """A point on a queue of a fake device. To ask for it is to wait for it."""

    queue: LateQueue
    count: int
    """Items of the queue that are before it."""

    def query(self) -> bool:
        """See `Event.query`."""
        self.queue.reach(self.count)
        return True


class LateQueue:
    """A queue whose items run when somebody waits for them, or at once if it is eager.

    Args:
        is_eager: run whatever events allow, as soon as they do.
        world: all queues of the device, this one included when it is made known there.
    """

    def __init__(self, is_eager: bool, world: list[LateQueue]) -> None:
        self._is_eager = is_eager
        self._world = world
        self._items: list[Callable[[], None] | Event] = []
        self._done = 0

    def run(self, work: Callable[[], None]) -> None:
        """See `DeviceQueue.run`."""
        self._add(work)

    def wait(self, event: Event) -> None:
        """See `DeviceQueue.wait`."""
        self._add(event)

    def record(self) -> LateEvent:
        """See `DeviceQueue.record`."""
        return LateEvent(self, len(self._items))

    def reach(self, count: int) -> None:
        """Run the first `count` items, and of other queues what they wait for and nothing else."""
        while self._done < count:
            number = self._done
            item = self._items[number]
            if callable(item):
                self._done += 1
                item()
            else:
                item.query()  # may let this queue itself go on, if it is eager
                self._done = max(self._done, number + 1)
        self._hurry_all()

    def has_reached(self, count: int) -> bool:
        return self._done >= count

    def _add(self, item: Callable[[], None] | Event) -> None:
        self._items.append(item)
        self._hurry_all()

    def _hurry_all(self) -> None:
        """Let the eager ones run until all of them are held up."""
        while any(queue._hurry() for queue in self._world):
            pass

    def _hurry(self) -> bool:
        """Run one item if nothing holds it up; say whether one ran."""
        if not self._is_eager or self._done == len(self._items):
            return False
        item = self._items[self._done]
        if callable(item):
            self._done += 1
            item()
        elif isinstance(item, LateEvent) and not item.queue.has_reached(item.count):
            return False
        else:
            self._done += 1
        return True


def late_queues(eager: Collection[str] = ()) -> DeviceQueues:
    """Queues of a device that is as slow as events allow.

    What lacks an event runs too late on a queue that is late, and what it would have waited for comes too early on one
    that is eager: to find every event that is missing, go through all sets of eager queues.

    Args:
        eager: names of the queues in `DeviceQueues` that are as fast as events allow.
    """
    world: list[LateQueue] = []
    world.extend(LateQueue(name in eager, world) for name in DeviceQueues._fields)
    return DeviceQueues(*world)


HOST_READS = ("_local_scalar_dense", "item", "nonzero", "lift_fresh", "is_nonzero", "equal")
"""Operations that bring a value to the host, or a value of the host's to the device: no graph can hold them."""


class _Tape(TorchDispatchMode):
    """Notes every operation on tensors, with the very tensors that it took and gave."""

    def __init__(self) -> None:
        super().__init__()
        self._calls: list[tuple[Any, tuple[Any, ...], dict[str, Any], Any]] = []

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        name = func.overloadpacket.__name__
        if name in HOST_READS:
            raise RuntimeError(f"{name} waits for the device: it cannot be captured")
        given = func(*args, **(kwargs or {}))
        self._calls.append((func, args, kwargs or {}, given))
        return given

    @torch.inference_mode()
    def replay(self) -> None:
        """Do it all again: what was made then is written anew."""
        for func, args, kwargs, given in self._calls:
            again = func(*args, **kwargs)
            for old, new in zip(_tensors(given), _tensors(again), strict=True):
                if old.data_ptr() != new.data_ptr():
                    old.copy_(new)


def _tensors(given: Any) -> list[torch.Tensor]:
    items = given if isinstance(given, list | tuple) else [given]
    return [item for item in items if isinstance(item, torch.Tensor)]


def recorded_steps(work: Callable[[], torch.Tensor]) -> Captured:
    """A `graphs.Capture` without a device: like a CUDA graph it knows addresses and no code.

    What the work reads on the host while it is captured is frozen in it, and work that asks the device for a value is
    refused.
    """
    work()
    tape = _Tape()
    with tape:
        output = work()
    return Captured(output, tape.replay)

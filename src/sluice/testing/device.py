"""Public fakes of a device: queues and captured steps that keep every promise of a real device's, and no other.

LateQueue        runs work as late, or as early, as the events between the queues allow
recorded_steps   replays captured work with the tensors of the capture, as a CUDA graph does
StaticAttention  reads lengths of decodes on the device only, so that a captured step can hold it
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from sluice.attention.base import Attention, ForwardBatch, PagedKV
from sluice.attention.reference import ReferenceAttention
from sluice.attention.spec import AttentionSpec
from sluice.device.queues import DeviceQueues, Event
from sluice.runner.graphs import Captured


@dataclass(frozen=True)
class LateEvent:
    """A point on a queue of a fake device. A query waits for it."""

    queue: LateQueue
    count: int
    """Number of the queue's items before it."""

    def query(self) -> bool:
        """Run everything queued before this point. Always returns True."""
        self.queue.reach(self.count)
        return True


class LateQueue:
    """A queue whose items run when another queue or the host waits for them, or at once if it is eager.

    Args:
        is_eager: run items as soon as events allow.
        world: all queues of the device. The caller adds this one.
    """

    def __init__(self, is_eager: bool, world: list[LateQueue]) -> None:
        self._is_eager = is_eager
        self._world = world
        self._items: list[Callable[[], None] | Event] = []
        self._done = 0

    def run(self, work: Callable[[], None]) -> None:
        self._add(work)

    def wait(self, event: Event) -> None:
        self._add(event)

    def record(self) -> LateEvent:
        return LateEvent(self, len(self._items))

    def reach(self, count: int) -> None:
        """Run the first `count` items, and the items of other queues that they wait for, and no others."""
        while self._done < count:
            number = self._done
            item = self._items[number]
            if callable(item):
                self._done += 1
                item()
            else:
                item.query()  # may run items of this queue too, if it is eager
                self._done = max(self._done, number + 1)
        self._hurry_all()

    def has_reached(self, count: int) -> bool:
        return self._done >= count

    def _add(self, item: Callable[[], None] | Event) -> None:
        self._items.append(item)
        self._hurry_all()

    def _hurry_all(self) -> None:
        """Run the eager queues until each is empty or waits for an event."""
        while any(queue._hurry() for queue in self._world):
            pass

    def _hurry(self) -> bool:
        """Run one item if no event holds it up. Returns whether one ran."""
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
    """Make the queues of a device that is as slow as events allow.

    Where an event is missing, work runs too late on a late queue, or too early on an eager one. To find every missing
    event, run a test with all sets of eager queues.

    Args:
        eager: names of the queues in `DeviceQueues` that run as early as events allow.
    """
    world: list[LateQueue] = []
    world.extend(LateQueue(name in eager, world) for name in DeviceQueues._fields)
    return DeviceQueues(*world)


HOST_READS = ("_local_scalar_dense", "item", "nonzero", "lift_fresh", "is_nonzero", "equal")
"""Operations that copy a value from the device to the host or back. No graph can hold them."""


class _Tape(TorchDispatchMode):
    """Records every operation on tensors, with its own arguments and results."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._calls: list[tuple[Any, tuple[Any, ...], dict[str, Any], Any]] = []

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        name = func.overloadpacket.__name__
        if name in HOST_READS:
            raise RuntimeError(f"{name} waits for the device: it cannot be captured")
        result = func(*args, **(kwargs or {}))
        self._calls.append((func, args, kwargs or {}, result))
        return result

    @torch.inference_mode()
    def replay(self) -> None:
        """Run all operations again, and write their results over the old ones."""
        for func, args, kwargs, result in self._calls:
            again = func(*args, **kwargs)
            for old, new in zip(_tensors(result), _tensors(again), strict=True):
                if old.data_ptr() != new.data_ptr():
                    old.copy_(new)


def _tensors(result: Any) -> list[torch.Tensor]:
    items = result if isinstance(result, list | tuple) else [result]
    return [item for item in items if isinstance(item, torch.Tensor)]


def recorded_steps(work: Callable[[], torch.Tensor]) -> Captured:
    """Capture the operations of `work` without a device, as `graphs.Capture` does with one.

    Like a CUDA graph, the capture holds addresses and no code. Values that `work` reads on the host during the
    capture are frozen in it.

    Raises:
        RuntimeError: `work` copies a value from the device to the host.
    """
    work()
    tape = _Tape()
    with tape:
        output = work()
    return Captured(output, tape.replay)


class StaticAttention(Attention):
    """Attention that reads every page of every row of decodes. Other steps are computed as the reference does."""

    def __init__(self) -> None:
        self._reference = ReferenceAttention()

    def attend(
        self, q: torch.Tensor, kv: PagedKV, batch: ForwardBatch, spec: AttentionSpec, *, need_lse: bool = False
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        if batch.num_decodes < len(batch.q_lens) or spec.softcap is not None or need_lse:
            return self._reference.attend(q, kv, batch, spec, need_lse=need_lse)
        k, v = (pages.flatten(1, 2) for pages in kv.gather(batch.page_table))
        k, v = (each.repeat_interleave(q.shape[1] // kv.kv_heads, dim=2) for each in (k, v))
        positions = torch.arange(k.shape[1], device=q.device)
        seen = positions < batch.kv_lens[:, None]
        if spec.window is not None:
            seen &= positions >= batch.kv_lens[:, None] - spec.window
        scores = (q[:, None] * k).sum(-1) * spec.scale
        weights = scores.masked_fill(~seen[..., None], -torch.inf).softmax(1)
        return (weights[..., None] * v.masked_fill(~seen[..., None, None], 0)).sum(1), None

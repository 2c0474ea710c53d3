"""TorchGroup: ranks that are processes, over torch.distributed: gloo on CPUs, NCCL on CUDA devices.

The process groups are made directly and not by `init_process_group`, which makes one default group for the whole
process, whose gloo listens on the interface of the host's name.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from sluice.parallel.group import Alone, Group, GroupError
from sluice.parallel.layout import Place
from sluice.parallel.member import Member

Backend = Any
"""A `ProcessGroupGloo` or `ProcessGroupNCCL`, whose calls torch's annotations lack."""
MAX_SENDS = 8
"""Tensors on their way to other ranks. One more waits until the first of them has arrived."""

TICK_SECONDS = 0.5
"""Seconds between two ticks of one wait. The first tick comes this long after the wait began, or up to twice as
long."""


class TorchGroup:
    """One rank of a group of processes.

    Args:
        backend: the group, connected.
        tick: called about every second while this rank waits for others; None: nothing is.
    """

    def __init__(self, backend: Backend, tick: Callable[[], None] | None = None) -> None:
        self.rank = backend.rank()
        self.size = backend.size()
        self._backend: Backend | None = backend
        self._sends: deque[tuple[dist.Work, torch.Tensor]] = deque()
        """What is on its way to other ranks, with the memory that it is sent from."""
        self._ticker = None if tick is None else WaitTicker(tick)

    def all_reduce(self, x: torch.Tensor) -> torch.Tensor:
        with self._calls() as backend:
            backend.allreduce([x]).wait()
        return x

    def all_gather(self, x: torch.Tensor) -> torch.Tensor:
        gathered = x.new_empty((self.size, *x.shape))
        with self._calls() as backend:
            backend.allgather([list(gathered.unbind())], [x]).wait()
        return gathered

    def send(self, x: torch.Tensor, to: int) -> None:
        copy = x.clone()
        with self._calls() as backend:
            if len(self._sends) == MAX_SENDS:
                oldest, _ = self._sends.popleft()
                oldest.wait()
            self._sends.append((backend.send([copy], to, 0), copy))

    def recv(self, x: torch.Tensor, source: int) -> torch.Tensor:
        with self._calls() as backend:
            backend.recv([x], source, 0).wait()
        return x

    def close(self) -> None:
        if self._ticker is not None:
            self._ticker.close()
        if self._backend is not None:
            self._backend.abort()
        self._sends.clear()
        self._backend = None  # its end closes the connections, which the other ranks see

    @contextmanager
    def _calls(self) -> Iterator[Backend]:
        if self._backend is None:
            raise GroupError("this rank has left its group")
        with _group_errors(), self._ticker or nullcontext():
            yield self._backend


@contextmanager
def _group_errors() -> Iterator[None]:
    """Raise the errors of torch.distributed, which are RuntimeErrors of long texts, as `GroupError`s."""
    try:
        yield
    except RuntimeError as error:
        raise GroupError(f"another rank has ended or not answered in time: {str(error).splitlines()[0]}") from error


def join_groups(
    place: Place,
    store: dist.Store,
    address: str,
    timeout: float,
    device: torch.device,
    tick: Callable[[], None] | None = None,
) -> Member:
    """Join the groups of a rank. Every rank of the layout must do so; returns when those of its groups have.

    Args:
        store: where ranks find each other, by a connection of this rank alone.
        address: this machine's, on which gloo listens, for the other ranks alone.
        timeout: seconds that a call of a group waits for other ranks.
        device: of the tensors.
        tick: called about every second while a call waits for other ranks; None: nothing is.

    Raises:
        GroupError: the others have not joined in time.
    """
    layout = place.layout

    def join(name: str, rank: int, size: int) -> Group:
        if size == 1:
            return Alone()
        with _group_errors():
            return TorchGroup(_backend(dist.PrefixStore(name, store), rank, size, address, timeout, device), tick)

    tensor = join(f"tensor/{place.stage}", place.shard, layout.tensor_size)
    return Member(place, tensor, join(f"pipeline/{place.shard}", place.stage, layout.pipeline_size))


def _backend(store: dist.Store, rank: int, size: int, address: str, timeout: float, device: torch.device) -> Backend:
    limit = timedelta(seconds=timeout)
    if device.type == "cuda":
        options = dist.ProcessGroupNCCL.Options()
        options._timeout = limit
        return dist.ProcessGroupNCCL(store, rank, size, options)
    options = dist.ProcessGroupGloo._Options()  # type: ignore[attr-defined]
    options._timeout = limit
    options._devices = [dist.ProcessGroupGloo.create_device(hostname=address)]
    return dist.ProcessGroupGloo(store, rank, size, options)


class WaitTicker:
    """Calls `tick` while the body of a `with` takes long, and at no other time. Bodies do not overlap.

    A thread of its own calls it. The waiting thread cannot: a wait of gloo to receive that times out closes the group's
    connections, and until it is waited for, gloo does not say whether a tensor has come.

    Args:
        tick: shows that the thread of the body lives. An error ends the ticks.
        seconds: between two ticks.
    """

    def __init__(self, tick: Callable[[], None], seconds: float = TICK_SECONDS) -> None:
        self._tick = tick
        self._seconds = seconds
        self._lock = threading.Lock()
        self._entered = 0
        self._is_inside = False
        self._closed = threading.Event()
        threading.Thread(target=self._run, name="tick-in-waits", daemon=True).start()

    def __enter__(self) -> None:
        with self._lock:
            self._entered += 1
            self._is_inside = True

    def __exit__(self, *_: object) -> None:
        with self._lock:  # no tick comes after the body, when the thread may show what else it does
            self._is_inside = False

    def close(self) -> None:
        """End the ticks. May be called again."""
        self._closed.set()

    def _run(self) -> None:
        seen = 0
        while not self._closed.wait(self._seconds):
            with self._lock:
                if self._is_inside and self._entered == seen:
                    self._tick()
                seen = self._entered

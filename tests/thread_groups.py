"""ThreadGroup: ranks that are threads of one process, so that a test of several ranks needs no other process."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Protocol, Self, TypeVar

import torch

from sluice.parallel.group import GroupError
from sluice.parallel.layout import Layout
from sluice.parallel.member import Member


class Rank(Protocol):
    """What a rank is run with: a group, or a member."""

    def close(self) -> None:
        """Make calls of the others raise."""
        ...


R = TypeVar("R", bound=Rank)
T = TypeVar("T")
TIMEOUT = 30.0
"""Seconds after which a rank that waits for the others gives up."""


class _Shared:
    """What the ranks of a group share."""

    def __init__(self, size: int, timeout: float) -> None:
        self.size = size
        self.timeout = timeout
        self.barrier = threading.Barrier(size, timeout=timeout)
        self.values: list[torch.Tensor | None] = [None] * size
        self.sent: dict[tuple[int, int], deque[torch.Tensor]] = {}
        self.changed = threading.Condition()
        self.is_broken = False

    def abort(self) -> None:
        """Make every call that waits, and every later one, raise."""
        with self.changed:
            self.is_broken = True
            self.changed.notify_all()
        self.barrier.abort()


class ThreadGroup:
    """One rank of a group of threads."""

    def __init__(self, rank: int, shared: _Shared) -> None:
        self.rank = rank
        self.size = shared.size
        self._shared = shared

    @classmethod
    def make(cls, size: int, timeout: float = TIMEOUT) -> tuple[Self, ...]:
        """Return the ranks of a new group."""
        shared = _Shared(size, timeout)
        return tuple(cls(rank, shared) for rank in range(size))

    def all_reduce(self, x: torch.Tensor) -> torch.Tensor:
        return self.all_gather(x).sum(0)

    def all_gather(self, x: torch.Tensor) -> torch.Tensor:
        shared = self._shared
        shared.values[self.rank] = x
        self._meet()
        gathered = torch.stack([value for value in shared.values if value is not None])
        self._meet()  # x may be changed, and the next call may begin, once all have read
        return gathered

    def send(self, x: torch.Tensor, to: int) -> None:
        with self._shared.changed:
            self._check()
            self._shared.sent.setdefault((self.rank, to), deque()).append(x.clone())
            self._shared.changed.notify_all()

    def recv(self, x: torch.Tensor, source: int) -> torch.Tensor:
        shared = self._shared
        with shared.changed:
            sent = shared.sent.setdefault((source, self.rank), deque())
            shared.changed.wait_for(lambda: bool(sent) or shared.is_broken, shared.timeout)
            self._check()
            if not sent:
                raise GroupError(f"rank {source} has sent nothing for {shared.timeout:g} s")
            return x.copy_(sent.popleft())

    def close(self) -> None:
        """Leave the group: calls of the others raise."""
        self._shared.abort()

    def _meet(self) -> None:
        try:
            self._shared.barrier.wait()
        except threading.BrokenBarrierError:
            raise GroupError("another rank has left or not answered") from None

    def _check(self) -> None:
        if self._shared.is_broken:
            raise GroupError("another rank has left")


def thread_members(layout: Layout) -> tuple[Member, ...]:
    """Return the members of a layout over new groups of threads."""
    stages = [ThreadGroup.make(layout.tensor_size) for _ in range(layout.pipeline_size)]
    shards = [ThreadGroup.make(layout.pipeline_size) for _ in range(layout.tensor_size)]
    places = map(layout.place, range(layout.size))
    return tuple(Member(each, stages[each.stage][each.shard], shards[each.shard][each.stage]) for each in places)


def run_ranks(ranks: Sequence[R], body: Callable[[R], T]) -> list[T]:
    """Run `body` on every rank, each in a thread of its own, and return what they return in the order of the ranks.

    Raises:
        Exception: the error of the rank that failed first. It ends the group.
    """
    first: list[Exception] = []

    def run(rank: R) -> T:
        try:
            return body(rank)
        except Exception as error:
            first.append(error)
            rank.close()
            raise

    with ThreadPoolExecutor(len(ranks)) as threads:
        futures = [threads.submit(run, rank) for rank in ranks]
    if first:
        raise first[0]
    return [future.result() for future in futures]

"""How long a stage of a pipeline computes a step, without what it waits for the other stages."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace

import torch

from sluice.parallel.group import Group
from sluice.parallel.member import Member
from sluice.storage.copies import Launched

Clock = Callable[[], float]
Timed = Callable[[Callable[[], Launched]], tuple[Launched, tuple[int, ...]]]
"""Starts a step. Returns it, and the microseconds that this stage computed; () if they are not known."""


class TimedGroup:
    """A group that counts the time in which its rank waits to receive.

    Args:
        inner: does the rest.
        clock: seconds.
    """

    def __init__(self, inner: Group, clock: Clock) -> None:
        self.rank = inner.rank
        self.size = inner.size
        self.waited = 0.0
        """Seconds waited so far."""
        self._inner = inner
        self._clock = clock

    def all_reduce(self, x: torch.Tensor) -> torch.Tensor:
        return self._inner.all_reduce(x)

    def all_gather(self, x: torch.Tensor) -> torch.Tensor:
        return self._inner.all_gather(x)

    def send(self, x: torch.Tensor, to: int) -> None:
        self._inner.send(x, to)

    def recv(self, x: torch.Tensor, source: int) -> torch.Tensor:
        began = self._clock()
        try:
            return self._inner.recv(x, source)
        finally:
            self.waited += self._clock() - began

    def close(self) -> None:
        self._inner.close()


class StageTimer:
    """Times the steps of a rank, where a launch computes: on a CPU. It times nothing where there is one stage.

    Args:
        member: the rank.
        clock: seconds.
    """

    def __init__(self, member: Member, clock: Clock = time.monotonic) -> None:
        self._group = TimedGroup(member.pipeline_group, clock)
        self._clock = clock
        self.member = replace(member, pipeline_group=self._group)
        """The rank as its model is to see it."""

    def timed(self, start: Callable[[], Launched]) -> tuple[Launched, tuple[int, ...]]:
        """Start a step. Return it, and the microseconds that this stage computed; () where there is one stage."""
        began, waited = self._clock(), self._group.waited
        step = start()
        if self._group.size == 1:
            return step, ()
        seconds = self._clock() - began - (self._group.waited - waited)
        return step, (max(1, round(seconds * 1e6)),)


def untimed(start: Callable[[], Launched]) -> tuple[Launched, tuple[int, ...]]:
    """Start a step where that only begins to compute it: its time is not known."""
    return start(), ()

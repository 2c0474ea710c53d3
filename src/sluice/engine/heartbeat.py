"""Signs of life of the thread that runs the steps, sent by that thread alone.

A tick says that the thread reached a certain point. It ticks once a turn of the loop, once a layer, and every second
while it waits. A thread that loops for ever in C, waits for a lock or was stopped ticks no more, even if the rest of
its process continues. Before its first step, while the model loads, it reports how far it is.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from enum import IntEnum

from sluice.engine.protocols import Pending, Runner
from sluice.types import BatchPlan, BatchResult


class Phase(IntEnum):
    """What the thread does."""

    LOADING = 0
    """Loads the model."""
    IDLE = 1
    """Waits for messages, with nothing to do."""
    BUSY = 2
    """Plans, or computes."""
    DEVICE = 3
    """Waits for a step that a device computes."""


class LoadingPart(IntEnum):
    """Parts of loading, in order."""

    STARTING = 0
    """The process starts and imports its modules."""
    FILES = 1
    """The checkpoint's files are found, or downloaded."""
    WEIGHTS = 2
    """Weights are read; counted in bytes."""
    PACKING = 3
    """Weights are laid out for their products; counted in layers."""
    MEMORY = 4
    """Memory for KV is allocated."""
    GRAPHS = 5
    """Steps are captured; counted in graphs."""


class Heartbeat:
    """Receives signs of life. This base class ignores them."""

    def loading(self, part: LoadingPart, done: int = 0, total: int = 0) -> None:
        """Receive how far the model is loaded.

        Args:
            done: how much of this part is done.
            total: how much there is to do in this part; 0 if that is unknown.
        """

    def tick(self, phase: Phase) -> None:
        """Receive that the thread lives, and what it does."""

    def launching(self, step: int, request_ids: Iterable[int]) -> None:
        """Receive that a step is about to be launched, and which requests are in flight then, its own included."""

    def step_done(self, tokens: int) -> None:
        """Receive that the oldest step in flight has computed this many tokens."""


class WatchedRunner:
    """A runner in front of another one that reports every step to the heartbeat.

    The requests in flight are reported before a step is launched, so that they are known if the process dies of it. A
    step counts as in flight until another is launched: meanwhile its result is committed.
    """

    def __init__(self, inner: Runner, heartbeat: Heartbeat) -> None:
        self._inner = inner
        self._heartbeat = heartbeat
        self._in_flight: deque[WatchedStep] = deque()

    def launch(self, plan: BatchPlan) -> WatchedStep:
        while self._in_flight and self._in_flight[0].is_done:
            self._in_flight.popleft()  # its result was committed
        step = WatchedStep(plan, self._heartbeat)
        self._in_flight.append(step)
        ids = set[int]().union(*(each.request_ids for each in self._in_flight))
        self._heartbeat.launching(plan.step, sorted(ids))
        self._heartbeat.tick(Phase.BUSY)
        try:
            step.inner = self._inner.launch(plan)
        except Exception:
            step.is_done = True
            raise
        return step

    def close(self) -> None:
        self._inner.close()


class WatchedStep:
    """A launched step."""

    inner: Pending

    def __init__(self, plan: BatchPlan, heartbeat: Heartbeat) -> None:
        self.plan = plan
        self.request_ids = {chunk.request_id for chunk in plan.chunks}
        self.request_ids.update(part.chunk.request_id for part in plan.slices)
        self.is_done = False
        self._heartbeat = heartbeat

    def wait(self) -> BatchResult:
        self._heartbeat.tick(Phase.BUSY)
        try:
            result = self.inner.wait()
        finally:
            self.is_done = True
        self._heartbeat.step_done(self.plan.num_tokens)
        return result

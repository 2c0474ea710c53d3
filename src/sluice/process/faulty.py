"""The faults that were asked for, put into an engine: in front of its runner and its link."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterable, Sequence

from sluice.engine.heartbeat import Heartbeat, Phase
from sluice.engine.messages import Message, Stats
from sluice.engine.protocols import Pending, Runner
from sluice.faults import Fault, FaultKind
from sluice.process.zmq_link import ZmqLink
from sluice.types import BatchPlan, BatchResult, Output

TICK_SECONDS = 1.0
"""Between two signs of life of a slow step."""


class FaultyRunner:
    """Crashes, hangs, is slow or short of memory at the steps it is told.

    Args:
        inner: does the work otherwise.
        faults: of this engine.
        heartbeat: where a slow step says that it lives.
    """

    def __init__(self, inner: Runner, faults: Sequence[Fault], heartbeat: Heartbeat) -> None:
        self._inner = inner
        self._faults = faults
        self._heartbeat = heartbeat
        self._steps = 0

    def launch(self, plan: BatchPlan) -> Pending:
        step, self._steps = self._steps, self._steps + 1
        due = [fault for fault in self._faults if fault.rows(step, plan)]
        for fault in due:
            self._strike(fault.kind, step)
        slow = sum(fault.seconds for fault in due)
        pending = self._inner.launch(plan)
        return SlowStep(pending, slow, self._heartbeat) if slow else pending

    def _strike(self, kind: FaultKind, step: int) -> None:
        if kind is FaultKind.CRASH:
            os.kill(os.getpid(), signal.SIGKILL)
        if kind is FaultKind.HANG:
            threading.Event().wait()
        if kind is FaultKind.ALLOC:
            raise MemoryError(f"no memory for step {step}: a fault that was asked for")


class SlowStep:
    """A step on a device that takes its time."""

    def __init__(self, inner: Pending, seconds: float, heartbeat: Heartbeat) -> None:
        self._inner = inner
        self._seconds = seconds
        self._heartbeat = heartbeat

    def wait(self) -> BatchResult:
        never, left = threading.Event(), self._seconds
        while left > 0:
            self._heartbeat.tick(Phase.DEVICE)
            never.wait(min(left, TICK_SECONDS))
            left -= TICK_SECONDS
        return self._inner.wait()


class LossyLink:
    """A link that loses the messages it is told."""

    def __init__(self, inner: ZmqLink, numbers: Iterable[int], sent: int) -> None:
        """
        Args:
            numbers: of the messages to lose.
            sent: messages that were sent before.
        """
        self._inner = inner
        self._lost = frozenset(numbers)
        self._sent = sent

    def receive(self, *, block: bool, timeout: float | None = None) -> list[Message]:
        return self._inner.receive(block=block, timeout=timeout)

    def post(self, message: Message) -> None:
        self._inner.post(message)

    def send(self, outputs: Sequence[Output]) -> None:
        if not self._loses():
            self._inner.send(outputs)

    def answer(self, stats: Stats) -> None:
        if not self._loses():
            self._inner.answer(stats)

    def _loses(self) -> bool:
        number, self._sent = self._sent, self._sent + 1
        if number in self._lost:
            self._inner.lose()
        return number in self._lost

"""Injects the faults of `sluice.types.faults` into an engine's steps."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Sequence

from sluice.engine.heartbeat import Heartbeat, Phase
from sluice.engine.protocols import Pending, Runner
from sluice.types import BatchPlan, BatchResult
from sluice.types.faults import Fault, FaultKind

TICK_SECONDS = 1.0
"""Time between two ticks of a slow step."""


class FaultyRunner:
    """A runner that crashes, hangs, is slow or runs out of memory at certain steps.

    Args:
        inner: the runner that does the work.
        faults: the faults of this engine.
        heartbeat: ticks during a slow step.
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
            match fault.kind:
                case FaultKind.CRASH:
                    os.kill(os.getpid(), signal.SIGKILL)
                case FaultKind.HANG:
                    threading.Event().wait()
                case FaultKind.ALLOC:
                    raise MemoryError(f"no memory for step {step} (an injected fault)")
        slow = sum(fault.seconds for fault in due)
        pending = self._inner.launch(plan)
        return SlowStep(pending, slow, self._heartbeat) if slow else pending

    def close(self) -> None:
        self._inner.close()


class SlowStep:
    """A step on a slow device."""

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

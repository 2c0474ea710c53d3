"""A runner in front of another one that tells the heartbeat of every step."""

from __future__ import annotations

from collections import deque

from sluice.engine.heartbeat import Heartbeat, Phase
from sluice.engine.protocols import Pending, Runner
from sluice.types import BatchPlan, BatchResult


class WatchedRunner:
    """Says who is in flight before it launches a step, so that it is known if the process dies of it.

    A step counts as in flight until another is launched: its result is being folded in meanwhile.
    """

    def __init__(self, inner: Runner, heartbeat: Heartbeat) -> None:
        self._inner = inner
        self._heartbeat = heartbeat
        self._in_flight: deque[WatchedStep] = deque()

    def launch(self, plan: BatchPlan) -> WatchedStep:
        while self._in_flight and self._in_flight[0].has_landed:
            self._in_flight.popleft()  # its result was folded in
        step = WatchedStep(plan, self._heartbeat)
        self._in_flight.append(step)
        ids = {chunk.request_id for each in self._in_flight for chunk in each.plan.chunks}
        self._heartbeat.launching(plan.step, sorted(ids))
        self._heartbeat.tick(Phase.BUSY)
        try:
            step.inner = self._inner.launch(plan)
        except Exception:
            step.has_landed = True
            raise
        return step

    def close(self) -> None:
        self._inner.close()


class WatchedStep:
    """A launched step."""

    inner: Pending

    def __init__(self, plan: BatchPlan, heartbeat: Heartbeat) -> None:
        self.plan = plan
        self.has_landed = False
        self._heartbeat = heartbeat

    def wait(self) -> BatchResult:
        self._heartbeat.tick(Phase.BUSY)
        try:
            result = self.inner.wait()
        finally:
            self.has_landed = True
        self._heartbeat.landed(self.plan.num_tokens)
        return result

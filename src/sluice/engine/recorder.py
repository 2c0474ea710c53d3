"""Recorder: everything that reaches a scheduler, in the order in which it does, for others to write down.

A scheduler is a function of the calls made to it, so these are enough to make it plan the same again. The recorder
stands between the engine and its scheduler, and in front of the engine's trace sink, which tells it the times. The
engine knows nothing of it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from sluice.engine.clock import Clock
from sluice.engine.protocols import Planner, TraceSink
from sluice.engine.trace import StepRecord, StepTimes
from sluice.types import BatchPlan, BatchResult, CopyDone, FinishReason, Occupancy, Output, StoredPage, Submit


class Call(NamedTuple):
    """One call of the scheduler."""

    number: int
    """Calls are counted from 0, without a gap."""
    at: float
    """Seconds of the engine's clock, before the call."""


class Added(NamedTuple):
    """`add`."""

    call: Call
    submit: Submit
    refused: str | None
    """Why the scheduler did not take it."""


class Aborted(NamedTuple):
    """`abort`, also of a request that is unknown or has ended: then without outputs."""

    call: Call
    request_id: int
    reason: FinishReason
    outputs: tuple[Output, ...]


class NothingPlanned(NamedTuple):
    """`schedule` made no plan. It counts: it may have retracted a request all the same."""

    call: Call


class CacheFlushed(NamedTuple):
    """`flush_cache`."""

    call: Call
    pages: int
    """That it forgot."""


class DeviceForgotten(NamedTuple):
    """`forget_device`."""

    call: Call


class CopiesEnded(NamedTuple):
    """`copied`."""

    call: Call
    done: tuple[CopyDone, ...]
    outputs: tuple[Output, ...] = ()


class LoadsReported(NamedTuple):
    """`blocks_loaded`."""

    call: Call
    step: int
    ready: int
    error: str | None
    outputs: tuple[Output, ...] = ()


class CacheRestored(NamedTuple):
    """`restore`."""

    call: Call
    pages: tuple[StoredPage, ...]
    taken: int
    """How many of them were taken over."""


class StepEnded(NamedTuple):
    """A step: the `schedule` that planned it, and the `commit` or `fail` that ended it."""

    planned: Call
    plan: BatchPlan
    ended: Call | None
    """None: still in flight when the engine was closed."""
    times: StepTimes | None
    """None if nobody waited for it."""
    host_seconds: float
    """In the scheduler: planning, and folding the result in."""
    result: BatchResult | None
    error: str | None
    """Why it failed as a whole."""
    outputs: tuple[Output, ...]
    launched: bool = True
    """False: it failed before it began."""


Event = (
    Added
    | Aborted
    | NothingPlanned
    | CacheFlushed
    | DeviceForgotten
    | CopiesEnded
    | LoadsReported
    | CacheRestored
    | StepEnded
)


class Journal(Protocol):
    """Takes events. A step's comes when it ends, all others when they happen."""

    def write(self, event: Event) -> None: ...

    def flush(self) -> None:
        """The engine may sleep now: let readers see everything."""
        ...

    def close(self) -> None:
        """Nothing follows. Twice is once."""
        ...


@dataclass(slots=True)
class _Open:
    """A step that was planned and has not ended."""

    plan: BatchPlan
    planned: Call
    seconds: float
    times: StepTimes | None = None


class Recorder:
    """A planner (see `protocols.Planner`) and a trace sink in front of others.

    Args:
        planner: does the work.
        trace: is told of every step as before.
        journal: is told of every call; closed with the recorder.
        clock: the engine's.
    """

    def __init__(self, planner: Planner, trace: TraceSink, journal: Journal, clock: Clock) -> None:
        self._planner = planner
        self._trace = trace
        self._journal = journal
        self._clock = clock
        self._calls = 0
        self._open: dict[int, _Open] = {}
        """By step, oldest first."""

    @property
    def has_work(self) -> bool:
        return self._planner.has_work

    @property
    def awaits_disk(self) -> bool:
        return self._planner.awaits_disk

    @property
    def latest(self) -> StepRecord | None:
        return self._trace.latest

    def occupancy(self) -> Occupancy:
        return self._planner.occupancy()

    def add(self, submit: Submit) -> None:
        call, refused = self._call(), None
        try:
            self._planner.add(submit)
        except ValueError as error:
            refused = str(error)
            raise
        finally:
            self._journal.write(Added(call, submit, refused))
            self._rest()

    def abort(self, request_id: int, reason: FinishReason = FinishReason.ABORT) -> list[Output]:
        call = self._call()
        outputs = self._planner.abort(request_id, reason)
        self._journal.write(Aborted(call, request_id, reason, tuple(outputs)))
        self._rest()
        return outputs

    def flush_cache(self) -> int:
        call = self._call()
        pages = self._planner.flush_cache()
        self._journal.write(CacheFlushed(call, pages))
        self._rest()
        return pages

    def restore(self, pages: Sequence[StoredPage]) -> int:
        call = self._call()
        taken = self._planner.restore(pages)
        self._journal.write(CacheRestored(call, tuple(pages), taken))
        self._rest()
        return taken

    def forget_device(self) -> None:
        call = self._call()
        self._planner.forget_device()
        self._journal.write(DeviceForgotten(call))

    def schedule(self) -> BatchPlan | None:
        call, plan = self._call(), None
        try:
            plan = self._planner.schedule()
        finally:  # a scheduler that broke breaks again where this is replayed
            if plan is None:
                self._journal.write(NothingPlanned(call))
            else:
                self._open[plan.step] = _Open(plan, call, self._clock.now() - call.at)
        return plan

    def ended(self, plan: BatchPlan, result: BatchResult | None, times: StepTimes) -> None:
        self._open[plan.step].times = times
        self._trace.ended(plan, result, times)

    def commit(self, plan: BatchPlan, result: BatchResult) -> list[Output]:
        step, call, outputs = self._open.pop(plan.step), self._call(), []
        try:
            outputs = self._planner.commit(plan, result)
        finally:
            self._end(step, call, result, None, outputs)
        return outputs

    def fail(self, plan: BatchPlan, error: str, *, launched: bool = True) -> list[Output]:
        step, call, outputs = self._open.pop(plan.step), self._call(), []
        try:
            outputs = self._planner.fail(plan, error, launched=launched)
        finally:
            self._end(step, call, None, error, outputs, launched)
        return outputs

    def copied(self, done: Sequence[CopyDone]) -> list[Output]:
        call, outputs = self._call(), []
        try:
            outputs = self._planner.copied(done)
        finally:
            self._journal.write(CopiesEnded(call, tuple(done), tuple(outputs)))
            self._rest()
        return outputs

    def blocks_loaded(self, step: int, ready: int, error: str | None = None) -> list[Output]:
        call = self._call()
        outputs = self._planner.blocks_loaded(step, ready, error)
        self._journal.write(LoadsReported(call, step, ready, error, tuple(outputs)))
        self._rest()
        return outputs

    def close(self) -> None:
        """Write what is in flight, and close journal and trace."""
        for step in self._open.values():
            self._journal.write(StepEnded(step.planned, step.plan, None, step.times, step.seconds, None, None, ()))
        self._open.clear()
        self._journal.close()
        self._trace.close()

    def _call(self) -> Call:
        call = Call(self._calls, self._clock.now())
        self._calls += 1
        return call

    def _end(
        self,
        step: _Open,
        call: Call,
        result: BatchResult | None,
        error: str | None,
        outputs: list[Output],
        launched: bool = True,
    ) -> None:
        host_seconds = step.seconds + self._clock.now() - call.at
        event = StepEnded(
            step.planned, step.plan, call, step.times, host_seconds, result, error, tuple(outputs), launched
        )
        self._journal.write(event)
        self._rest()

    def _rest(self) -> None:
        if not self._planner.has_work:
            self._journal.flush()

"""Recorder: records every call of a scheduler, in order.

A scheduler is a function of the calls made to it, so these are enough to make it plan the same again. The recorder
stands between the engine and its scheduler, and in front of the engine's trace sink, which gives it the times. The
engine does not know of it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from sluice.engine.clock import Clock
from sluice.engine.protocols import Planner
from sluice.engine.trace import StepRecord, StepTimes, TraceSink
from sluice.tracing.file import TraceFile
from sluice.tracing.format import (
    Abort,
    AdapterLoaded,
    Add,
    Compiled,
    Copied,
    FlushCache,
    ForgetDevice,
    Loaded,
    Nothing,
    Record,
    Restored,
    Step,
    ends_of,
)
from sluice.types import (
    AdapterSwap,
    BatchPlan,
    BatchResult,
    CopyDone,
    FinishReason,
    Occupancy,
    Output,
    StoredPage,
    Submit,
)


@dataclass(slots=True)
class _OpenStep:
    """A step that was planned and has not ended."""

    plan: BatchPlan
    planned: int
    planned_at: float
    seconds: float
    times: StepTimes | None = None


class Recorder:
    """A planner (see `protocols.Planner`) and a trace sink in front of others.

    Args:
        planner: does the work.
        trace: receives every step as well.
        journal: receives every record; closed with the recorder.
        clock: the engine's.
        start: what the clock shows at the header's `unix_time`: 0 in records.
    """

    def __init__(
        self, planner: Planner, trace: TraceSink, journal: TraceFile, clock: Clock, *, start: float = 0.0
    ) -> None:
        self._planner = planner
        self._trace = trace
        self._journal = journal
        self._clock = clock
        self._start = start
        self._calls = 0
        self._open: dict[int, _OpenStep] = {}
        """Open steps by number, oldest first."""

    @property
    def has_work(self) -> bool:
        return self._planner.has_work

    @property
    def awaits_report(self) -> bool:
        return self._planner.awaits_report

    @property
    def latest(self) -> StepRecord | None:
        return self._trace.latest

    def occupancy(self) -> Occupancy:
        return self._planner.occupancy()

    def queued_prefill_tokens(self) -> int:
        return self._planner.queued_prefill_tokens()

    def add(self, submit: Submit) -> None:
        (number, at), refused = self._call(), None
        try:
            self._planner.add(submit)
        except ValueError as error:
            refused = str(error)
            raise
        finally:
            arrived_at = self._time(submit.arrived / 1e6) if submit.arrived else None
            self._write(Add.of(submit, number=number, at=self._time(at), refused=refused, arrived_at=arrived_at))

    def abort(self, request_id: int, reason: FinishReason = FinishReason.ABORT) -> list[Output]:
        number, at = self._call()
        outputs = self._planner.abort(request_id, reason)
        self._write(
            Abort(number=number, at=self._time(at), request_id=request_id, reason=reason, ends=ends_of(outputs))
        )
        return outputs

    def flush_cache(self) -> int:
        number, at = self._call()
        pages = self._planner.flush_cache()
        self._write(FlushCache(number=number, at=self._time(at), pages=pages))
        return pages

    def restore(self, pages: Sequence[StoredPage]) -> int:
        number, at = self._call()
        taken = self._planner.restore(pages)
        self._write(Restored(number=number, at=self._time(at), num_pages=len(pages), taken=taken, pages=tuple(pages)))
        return taken

    def forget_device(self) -> None:
        number, at = self._call()
        self._planner.forget_device()
        self._journal.write(ForgetDevice(number=number, at=self._time(at)))

    def schedule(self) -> BatchPlan | None:
        (number, at), plan = self._call(), None
        try:
            plan = self._planner.schedule()
        finally:  # a scheduler that broke breaks again where this is replayed
            if plan is None:
                self._journal.write(Nothing(number=number, at=self._time(at)))
            else:
                self._open[plan.step] = _OpenStep(plan, number, self._time(at), self._clock.now() - at)
        return plan

    def ended(self, plan: BatchPlan, result: BatchResult | None, times: StepTimes) -> None:
        self._open[plan.step].times = times
        self._trace.ended(plan, result, times)

    def commit(self, plan: BatchPlan, result: BatchResult, micros: int = 0) -> list[Output]:
        (number, at), outputs = self._call(), []
        try:
            outputs = self._planner.commit(plan, result, micros)
        finally:
            self._write(self._step(self._open.pop(plan.step), number, at, outputs, result=result, micros=micros))
        return outputs

    def fail(self, plan: BatchPlan, error: str, *, launched: bool = True) -> list[Output]:
        (number, at), outputs = self._call(), []
        try:
            outputs = self._planner.fail(plan, error, launched=launched)
        finally:
            self._write(self._step(self._open.pop(plan.step), number, at, outputs, error=error, launched=launched))
        return outputs

    def copied(self, done: Sequence[CopyDone]) -> list[Output]:
        (number, at), outputs = self._call(), []
        try:
            outputs = self._planner.copied(done)
        finally:
            self._write(Copied(number=number, at=self._time(at), done=tuple(done), ends=ends_of(outputs)))
        return outputs

    def blocks_loaded(
        self, step: int, ready: int, error: str | None = None, lost_page: int | None = None
    ) -> list[Output]:
        number, at = self._call()
        outputs = self._planner.blocks_loaded(step, ready, error, lost_page)
        record = Loaded(
            number=number,
            at=self._time(at),
            step=step,
            ready=ready,
            error=error,
            lost_page=lost_page,
            ends=ends_of(outputs),
        )
        self._write(record)
        return outputs

    def compiled(self, request_id: int, error: str | None = None) -> list[Output]:
        number, at = self._call()
        outputs = self._planner.compiled(request_id, error)
        self._write(
            Compiled(number=number, at=self._time(at), request_id=request_id, error=error, ends=ends_of(outputs))
        )
        return outputs

    def take_swaps(self) -> Sequence[AdapterSwap]:
        return self._planner.take_swaps()

    def adapter_loaded(self, adapter: str, error: str | None = None) -> list[Output]:
        number, at = self._call()
        outputs = self._planner.adapter_loaded(adapter, error)
        self._write(
            AdapterLoaded(number=number, at=self._time(at), adapter=adapter, error=error, ends=ends_of(outputs))
        )
        return outputs

    def close(self) -> None:
        """Write the steps in flight, and close journal and trace."""
        for step in self._open.values():
            self._journal.write(self._step(step, None, self._clock.now(), ()))
        self._open.clear()
        self._journal.close()
        self._trace.close()

    def _call(self) -> tuple[int, float]:
        """Return the number of a new call, and when it is made, in seconds of the clock."""
        self._calls += 1
        return self._calls - 1, self._clock.now()

    def _time(self, seconds: float) -> float:
        return round(seconds - self._start, 6)

    def _step(
        self,
        step: _OpenStep,
        number: int | None,
        at: float,
        outputs: Sequence[Output],
        *,
        result: BatchResult | None = None,
        error: str | None = None,
        launched: bool = True,
        micros: int = 0,
    ) -> Step:
        """Return the record of a step.

        Args:
            number: of the call that ended it, made at `at`, in seconds of the clock; None if it is still in flight.
            micros: that the call was given.
        """
        found, times = result or BatchResult(step.plan.step, ()), step.times or StepTimes(0.0, 0.0, 0.0, 0.0)
        host_seconds = step.seconds + (0.0 if number is None else self._clock.now() - at)
        return Step(
            number=number,
            planned=step.planned,
            planned_at=step.planned_at,
            launched_at=None if step.times is None else self._time(times.launched_at),
            ended_at=None if step.times is None else self._time(times.ended_at),
            host_ms=_ms(host_seconds),
            device_ms=_ms(times.launch_seconds + times.wait_seconds),
            wait_ms=_ms(times.wait_seconds),
            micros=micros,
            plan=step.plan,
            tokens=None if result is None else found.token_ids,
            prompt_logprobs=tuple(len(row) for row in found.prompt_logprobs),
            row_errors=found.errors,
            error=error,
            launched=launched,
            copies=found.copies,
            slice_errors=found.slice_errors,
            complete=found.complete,
            accepted=found.accepted,
            stage_micros=found.stage_micros,
            ends=ends_of(outputs),
        )

    def _write(self, record: Record) -> None:
        """Write the record of a call after which the engine may have nothing to do."""
        self._journal.write(record)
        if not self._planner.has_work:
            self._journal.flush()


def _ms(seconds: float) -> float:
    return round(seconds * 1000, 4)

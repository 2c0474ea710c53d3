"""Whether a simulation is exact: a trace's requests and times, in which the engine must plan what it planned then.

What the world brings comes from the trace: requests and reports when they came, when each turn of the loop began and
each step ended, and what steps returned. The rest is the simulation: the loop, the engine, the scheduler and the tiers.
`sluice replay` makes the recorded calls; here they follow from the times.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby
from typing import NamedTuple

from sluice.bench.records import CountedBy, Failure, Record, TokenArrival
from sluice.engine import messages
from sluice.engine.clock import StepTimer, VirtualClock
from sluice.engine.engine import Engine
from sluice.engine.protocols import NoAdapters, NoGrammars
from sluice.sim.loop import NEVER, EngineLoop, SimLink
from sluice.sim.simulate import with_kinds
from sluice.tracing.file import TraceReader
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
    Restored,
    Step,
    TraceError,
    as_written,
    encode_plan,
)
from sluice.tracing.replay import (
    ANY_LOGPROB,
    Difference,
    Divergence,
    Ended,
    NumberedCall,
    PlanningCall,
    Replayed,
    first_difference,
    in_order,
)
from sluice.tracing.run import RequestRun, read_run
from sluice.types import AdapterSwap, BatchPlan, BatchResult

ANY_QUERY = 0
NOT_RECORDED = "the plan is not the recorded one"


@dataclass(slots=True)
class Followed:
    """The outcome."""

    steps: int = 0
    """Steps of the trace."""
    equal: int = 0
    """Steps that were planned alike, up to the first that was not."""
    divergence: Divergence | None = None


class LoopTurn(NamedTuple):
    """A turn of the engine's loop."""

    at: float
    step: Step | None
    """The step that was planned; None if there was none."""
    line: int


@dataclass(slots=True)
class Script:
    """What the world brought in a recorded run."""

    turns: list[LoopTurn] = field(default_factory=list)
    ended: list[Step] = field(default_factory=list)
    """Steps that ran, in the order of their ends."""
    messages: list[tuple[float, messages.Message]] = field(default_factory=list)
    restored: list[Restored] = field(default_factory=list)


def follow(trace: TraceReader) -> Followed:
    """Run a trace's requests at their times.

    Raises:
        TraceError: the file is broken, was written without token ids, or holds what cannot be followed.
    """
    header = trace.header
    if not header.token_ids:
        raise TraceError("the trace was written without token ids (--no-trace-token-ids) and cannot be followed")
    script = script_of(in_order(trace, Replayed()))
    clock, found = VirtualClock(), Followed(steps=sum(turn.step is not None for turn in script.turns))
    link = SimLink(clock, lambda outputs: None)
    runner = RecordedRunner(clock, script.turns, found)
    scheduler = header.setup.build()
    for restored in script.restored:
        scheduler.restore(restored.pages or ())
    engine = Engine(
        scheduler,
        runner,
        link,
        depth=header.depth,
        clock=clock,
        grammars=_Awaited(),
        adapters=_AdaptersAwaited(),
        timer=_RecordedTimer([step.micros for step in script.ended]),
    )
    for at, message in script.messages:
        link.put(at, message)
    loop = EngineLoop(engine, link, clock, _RecordedTimes(script.turns))
    while found.divergence is None and loop.next_event() < NEVER:
        loop.run_next()
    if found.divergence is None and found.equal < found.steps:
        turn = next(
            turn for turn in script.turns if turn.step is not None and turn.step.plan.step not in runner.planned
        )
        found.divergence = _divergence(turn, ("plan", "a step", "nothing"))
    return found


def script_of(calls: Iterable[NumberedCall]) -> Script:
    """Return what the world brought. Of what came at the same time, what was received before a turn comes before it.

    Raises:
        TraceError: the device lost its state, after which another engine continued.
    """
    script, turned_at, latest = Script(), -math.inf, -math.inf
    for call in calls:
        match call.action:
            case PlanningCall() | Nothing():
                step, at = (
                    (call.action.step, call.action.step.planned_at)
                    if isinstance(call.action, PlanningCall)
                    else (None, call.action.at)
                )
                turned_at = latest = _behind(at, latest, turned_at)
                # What wakes an engine may not be in the trace: a query for metrics, say.
                script.messages.append((latest, messages.QueryStats(ANY_QUERY)))
                script.turns.append(LoopTurn(latest, step, call.line))
            case Ended(step):
                if step.launched:
                    script.ended.append(step)
            case Restored():
                script.restored.append(call.action)
            case ForgetDevice():
                raise TraceError(f"line {call.line}: the device lost its state; such a trace cannot be followed")
            case Add() | Abort() | FlushCache() | Copied() | Loaded() | Compiled() | AdapterLoaded():
                latest = _behind(call.action.at, latest, turned_at)
                script.messages.append((latest, _message(call.action)))
    return script


def _behind(at: float, latest: float, turned_at: float) -> float:
    """Return the time of a call: not before the call before it, and behind the turn before it."""
    return max(at, latest) if max(at, latest) > turned_at else math.nextafter(turned_at, math.inf)


def _message(action: Add | Abort | FlushCache | Copied | Loaded | Compiled | AdapterLoaded) -> messages.Message:
    match action:
        case Add():
            return action
        case Abort(request_id=request_id, reason=reason):
            return messages.Abort(request_id, reason)
        case FlushCache():
            return messages.FlushCache(ANY_QUERY)
        case Copied(done=done):
            return messages.Copied(done)
        case Loaded(step=step, ready=ready, error=error, lost_page=lost_page):
            return messages.BlocksLoaded(step, ready, error, lost_page)
        case Compiled(request_id=request_id, error=error):
            return messages.Compiled(request_id, error)
        case AdapterLoaded(adapter=adapter, error=error):
            return messages.AdapterLoaded(adapter, error)


class _RecordedTimes:
    """Times of a recorded run (see `loop.SimulatedTimes`)."""

    def __init__(self, turns: Sequence[LoopTurn]) -> None:
        self._turns: Iterator[LoopTurn] = iter(turns)

    def ends_at(self, plan: BatchPlan, now: float, free_at: float) -> float:
        raise AssertionError("the recorded runner knows when its steps end")

    def turn_at(self, now: float, *, has_waited: bool) -> float:
        turn = next(self._turns, None)
        return NEVER if turn is None else turn.at


class _RecordedTimer(StepTimer):
    """Repeats the times that were reported to the scheduler for the steps that ran."""

    def __init__(self, micros: Sequence[int]) -> None:
        super().__init__(0.0)
        self._micros = iter(micros)

    def ended(self, now: float, launch_seconds: float) -> int:
        return next(self._micros)


class _AdaptersAwaited(NoAdapters):
    """Loads nothing: the trace reports when adapters were loaded."""

    def problem(self, adapter: str) -> None:
        """Return: there is none."""

    def swap(self, swap: AdapterSwap) -> None:
        """Return: it is reported later."""


class _Awaited(NoGrammars):
    """Compiles nothing: the trace reports when grammars were compiled."""

    def compile(self, request_id: int, grammar: str) -> None:
        """Return: it is reported later."""


@dataclass(slots=True)
class RecordedStep:
    """A launched step, which returns what was recorded."""

    plan: BatchPlan
    step: Step
    ends_at: float
    clock: VirtualClock

    def wait(self) -> BatchResult:
        self.clock.advance_to(self.ends_at)
        step = self.step
        if step.error is not None:
            raise RuntimeError(step.error)
        assert step.tokens is not None, f"step {self.plan.step} has neither tokens nor an error"
        return BatchResult(
            self.plan.step,
            step.tokens,
            step.row_errors,
            prompt_logprobs=tuple((ANY_LOGPROB,) * count for count in step.prompt_logprobs),
            embeddings=(b"",) * sum(chunk.embeds for chunk in self.plan.chunks),
            copies=step.copies,
            slice_errors=step.slice_errors,
            complete=step.complete,
            accepted=step.accepted,
        )


class RecordedRunner:
    """A runner that compares each plan with the recorded one."""

    def __init__(self, clock: VirtualClock, turns: Sequence[LoopTurn], found: Followed) -> None:
        self._clock = clock
        self._turns = {turn.step.plan.step: turn for turn in turns if turn.step is not None}
        self._found = found
        self.planned: set[int] = set()

    def launch(self, plan: BatchPlan) -> RecordedStep:
        turn = self._turns.get(plan.step)
        if turn is None or turn.step is None:
            self._found.divergence = Divergence(-1, -1, f"step {plan.step}, planned", "plan", "nothing", "a step")
            raise RuntimeError(NOT_RECORDED)
        difference = different_plan(turn.step.plan, plan)
        if difference is not None:
            self._found.divergence = self._found.divergence or _divergence(turn, difference)
            raise RuntimeError(NOT_RECORDED)
        self._found.equal += 1
        self.planned.add(plan.step)
        step = turn.step
        if not step.launched:
            raise RuntimeError(step.error)
        return RecordedStep(plan, step, NEVER if step.ended_at is None else step.ended_at, self._clock)

    def close(self) -> None:
        """Return: nothing is open."""


def _divergence(turn: LoopTurn, difference: Difference) -> Divergence:
    assert turn.step is not None
    return Divergence(turn.step.planned, turn.line, f"step {turn.step.plan.step}, planned", *difference)


def different_plan(recorded: BatchPlan, planned: BatchPlan) -> Difference | None:
    """Compare two plans, without the checksums of pages: the simulation has no bytes to sum."""
    one, other = (
        replace(plan, copies=tuple(copy._replace(checksum=0) for copy in plan.copies)) if plan.copies else plan
        for plan in (recorded, as_written(planned))
    )
    return None if encode_plan(one) == encode_plan(other) else first_difference(one, other)


def recorded_records(trace: TraceReader) -> list[Record]:
    """Return the requests that ended, in the order of their arrival. Times count from the first arrival; tokens are
    there when the engine has them.

    Raises:
        TraceError: the file is broken.
    """
    requests = [request for request in read_run(trace).requests.values() if request.end is not None]
    ordered = sorted(requests, key=_due)
    start = _due(ordered[0]) if ordered else 0.0
    return with_kinds([_record(request, number, start) for number, request in enumerate(ordered)])


def _due(request: RequestRun) -> float:
    return request.added_at if request.arrived_at is None else request.arrived_at


def _record(request: RequestRun, number: int, start: float) -> Record:
    end, due, ended = request.end, _due(request) - start, request.ended_at
    assert end is not None, "only requests that ended"
    assert ended is not None, "they ended at some time"
    failed = end.reason.is_failure
    return Record(
        session=number,
        turn=0,
        background=False,
        kind="",
        prompt_tokens=request.prompt_len,
        max_tokens=end.num_outputs,
        due=due,
        sent=due,
        accepted=due,
        ended=ended - start,
        arrivals=tuple(TokenArrival(at - start, len(list(same))) for at, same in groupby(request.token_times)),
        counted_by=CountedBy.IDS,
        cached_tokens=end.num_cached_tokens,
        finish_reason=None if failed else end.reason.value,
        failure=Failure(end.reason.value, end.error or "the request was ended") if failed else None,
    )

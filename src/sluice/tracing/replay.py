"""Replay: make the calls of a trace to the same scheduler once more, which must plan the same, byte for byte."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import NamedTuple

from sluice.scheduler.scheduler import Scheduler
from sluice.tracing.file import Line, TraceReader
from sluice.tracing.format import (
    Abort,
    AdapterLoaded,
    Add,
    Call,
    Compiled,
    Copied,
    End,
    FlushCache,
    ForgetDevice,
    Loaded,
    Nothing,
    Restored,
    Step,
    TraceError,
    as_written,
    encode_plan,
    ends_of,
)
from sluice.types import BatchPlan, BatchResult, NewSlot, Output, TokenLogprobs

ANY_LOGPROB = TokenLogprobs(0, 0.0, ())
"""Stands for a log-probability: the scheduler only counts them."""
SHOWN_CHARS = 200
"""Most characters of a value that differs."""

PLACES: Mapping[type, str] = {
    Nothing: "a turn that planned nothing",
    FlushCache: "a flush of the cache",
    ForgetDevice: "the loss of the device's state",
    Copied: "copies that ended",
    Loaded: "blocks that were loaded",
    Compiled: "a grammar that was compiled",
    AdapterLoaded: "an adapter that was loaded",
    Restored: "the cache, restored from a disk",
}
Difference = tuple[str, str, str]
"""A field, its recorded value and the replayed one."""


class ReplayError(TraceError):
    """The trace cannot be replayed."""


class PlanningCall(NamedTuple):
    """The call that planned a step."""

    step: Step


class Ended(NamedTuple):
    """The call that committed or failed a step."""

    step: Step


Action = Call | PlanningCall | Ended


class NumberedCall(NamedTuple):
    """A call of the scheduler and the line that records it."""

    number: int
    line: int
    action: Action


class Divergence(NamedTuple):
    """The first thing that came out differently."""

    call: int
    line: int
    where: str
    """The step or the request, in words."""
    field: str
    recorded: str
    replayed: str

    def __str__(self) -> str:
        return (
            f"{self.where} (call {self.call}, line {self.line}): {self.field}\n"
            f"  recorded  {self.recorded}\n"
            f"  replayed  {self.replayed}"
        )


@dataclass(slots=True)
class Replayed:
    """The outcome of a replay."""

    steps: int = 0
    """Steps that were planned alike."""
    calls: int = 0
    divergence: Divergence | None = None
    unended: int = 0
    """Calls left out because a step that was planned before them is not in the trace: it was in flight when the engine
    was killed."""


def replay(trace: TraceReader) -> Replayed:
    """Make all calls of a trace, up to the first whose outcome differs.

    Raises:
        ReplayError: a trace without token ids, or one of a scheduler that cannot be built.
        TraceError: the file is broken.
    """
    if not trace.header.token_ids:
        raise ReplayError("the trace was written without token ids (--no-trace-token-ids) and cannot be replayed")
    try:
        scheduler = trace.header.setup.build()
    except ValueError as error:
        raise ReplayError(f"the header's scheduler cannot be built: {error}") from error
    replayed, player = Replayed(), Player(scheduler)
    for call in in_order(trace, replayed):
        replayed.divergence = player.make(call)
        if replayed.divergence is not None:
            break
        replayed.calls += 1
        replayed.steps += isinstance(call.action, PlanningCall)
    return replayed


def in_order(lines: Iterable[Line], replayed: Replayed) -> Iterator[NumberedCall]:
    """Yield the calls as they were made: a step stands in the file where it ended, and was planned before.

    Raises:
        ReplayError: a call is missing, or there twice.
    """
    early: dict[int, NumberedCall] = {}
    due = 0
    for line in lines:
        for call in calls_of(line):
            if call.number < due or call.number in early:
                raise ReplayError(f"line {line.number}: call {call.number} occurs twice")
            early[call.number] = call
        while due in early:
            yield early.pop(due)
            due += 1
    if any(isinstance(call.action, PlanningCall) for call in early.values()):
        raise ReplayError(f"call {due} is missing: lines were lost before line {min(c.line for c in early.values())}")
    replayed.unended = len(early)


def calls_of(line: Line) -> Iterator[NumberedCall]:
    """Yield the call of a record, or the two of a step."""
    record = line.record
    if not isinstance(record, Step):
        yield NumberedCall(record.number, line.number, record)
        return
    yield NumberedCall(record.planned, line.number, PlanningCall(record))
    if record.number is not None:
        yield NumberedCall(record.number, line.number, Ended(record))


class Player:
    """Makes recorded calls to a scheduler and compares the outcomes."""

    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler = scheduler
        self._plans: dict[int, BatchPlan] = {}
        """Planned and not ended, by the number of the call."""

    def make(self, call: NumberedCall) -> Divergence | None:
        """Make one call. A scheduler that breaks has diverged as well."""
        try:
            found = self._make(call.action)
        except TraceError as error:
            raise ReplayError(f"line {call.line}: {error}") from error
        except Exception as error:  # noqa: BLE001 - a call that fails is a divergence
            found = "what the scheduler did", "no error", f"{type(error).__name__}: {error}"
        return None if found is None else Divergence(call.number, call.line, place_of(call.action), *found)

    def _make(self, action: Action) -> Difference | None:
        match action:
            case PlanningCall(step):
                return self._plan(step)
            case Ended(step):
                return different_ends(step.ends, self._end(step))
            case Nothing():
                plan = self._scheduler.schedule()
                return None if plan is None else ("plan", "none", f"step {plan.step}: {_chunks(plan)}")
            case Add():
                return self._add(action)
            case Abort():
                return different_ends(action.ends, self._scheduler.abort(action.request_id, action.reason))
            case FlushCache(pages=pages):
                flushed = self._scheduler.flush_cache()
                return None if flushed == pages else ("pages", str(pages), str(flushed))
            case ForgetDevice():
                self._scheduler.forget_device()
                return None
            case Copied(done=done):
                return different_ends(action.ends, self._scheduler.copied(done))
            case Loaded(step=step, ready=ready, error=error, lost_page=lost_page):
                return different_ends(action.ends, self._scheduler.blocks_loaded(step, ready, error, lost_page))
            case Compiled(request_id=request_id, error=error):
                return different_ends(action.ends, self._scheduler.compiled(request_id, error))
            case AdapterLoaded(adapter=adapter, error=error):
                return different_ends(action.ends, self._scheduler.adapter_loaded(adapter, error))
            case Restored(pages=pages, taken=taken):
                found = self._scheduler.restore(pages or ())
                return None if found == taken else ("pages", str(taken), str(found))

    def _add(self, add: Add) -> Difference | None:
        if len(add.prompt) != add.prompt_len:
            raise ReplayError(f"request {add.request_id} has no prompt")
        refused: str | None = None
        try:
            self._scheduler.add(add)
        except ValueError as error:
            refused = str(error)
        return None if refused == add.refused else ("refusal", repr(add.refused), repr(refused))

    def _plan(self, step: Step) -> Difference | None:
        plan = self._scheduler.schedule()
        if plan is None:
            return "plan", _chunks(step.plan), "nothing to plan"
        self._plans[step.planned] = plan
        plan = as_written(plan)
        return None if encode_plan(plan) == encode_plan(step.plan) else first_difference(step.plan, plan)

    def _end(self, step: Step) -> list[Output]:
        if step.planned not in self._plans:
            raise ReplayError(f"call {step.number} ends a step that call {step.planned} has not planned")
        plan = self._plans.pop(step.planned)
        if step.error is not None:
            return self._scheduler.fail(plan, step.error, launched=step.launched)
        if step.tokens is None:
            raise ReplayError(f"step {plan.step} has neither tokens nor an error")
        result = BatchResult(
            plan.step,
            step.tokens,
            step.row_errors,
            prompt_logprobs=tuple((ANY_LOGPROB,) * count for count in step.prompt_logprobs),
            embeddings=(b"",) * sum(chunk.embeds for chunk in plan.chunks),
            copies=step.copies,
            slice_errors=step.slice_errors,
            complete=step.complete,
            accepted=step.accepted,
            stage_micros=step.stage_micros,
        )
        return self._scheduler.commit(plan, result, step.micros)


def place_of(action: Action) -> str:
    """Name a call by its step or request."""
    match action:
        case PlanningCall(step):
            return f"step {step.plan.step}, planned"
        case Ended(step):
            return f"step {step.plan.step}, ended"
        case Add():
            return f"request {action.request_id}, added"
        case Abort():
            return f"request {action.request_id}, aborted"
    return PLACES[type(action)]


def different_ends(recorded: tuple[End, ...], outputs: list[Output]) -> Difference | None:
    """Compare the requests that ended."""
    replayed = ends_of(outputs)
    return None if replayed == recorded else ("ends", _show(recorded), _show(replayed))


def first_difference(recorded: BatchPlan, replayed: BatchPlan) -> Difference:
    """Find the first field of two plans that differs."""
    for name, one, other in (
        ("step", recorded.step, replayed.step),
        ("bound_by", recorded.bound_by.value, replayed.bound_by.value),
        ("num_decodes", recorded.num_decodes, replayed.num_decodes),
        ("new_slots", len(recorded.new_slots), len(replayed.new_slots)),
        ("chunks", _chunks(recorded), _chunks(replayed)),
        ("slices", recorded.slices, replayed.slices),
        ("copies", recorded.copies, replayed.copies),
        ("dropped", recorded.dropped, replayed.dropped),
        ("given_up", recorded.given_up, replayed.given_up),
        ("pace", recorded.pace, replayed.pace),
    ):
        if one != other:
            return name, _show(one), _show(other)
    ours, theirs = _rows(recorded), _rows(replayed)
    for name, row in ours.items():
        for field, value in row.items():
            if value != theirs[name][field]:
                return f"{name}.{field}", _show(value), _show(theirs[name][field])
    raise AssertionError(f"{recorded} and {replayed} differ only in their bytes")


def _rows(plan: BatchPlan) -> dict[str, dict[str, object]]:
    """The fields of each new slot and chunk, by a name for it."""
    slots = {f"new_slots[{index}]": _slot_fields(new) for index, new in enumerate(plan.new_slots)}
    return slots | {f"chunks[{index}]": chunk._asdict() for index, chunk in enumerate(plan.chunks)}


def _slot_fields(new: NewSlot) -> dict[str, object]:
    return asdict(new.submit) | {"slot": new.slot, "prompt_len": new.prompt_len, "history": new.history}


def _chunks(plan: BatchPlan) -> str:
    """The tokens of each request in a plan."""
    shown = (f"request {chunk.request_id} [{chunk.start}, {chunk.end})" for chunk in plan.chunks)
    return ", ".join(shown) or "no chunks"


def _show(value: object) -> str:
    text = value if isinstance(value, str) else repr(value)
    return text if len(text) <= SHOWN_CHARS else f"{text[:SHOWN_CHARS]}..."

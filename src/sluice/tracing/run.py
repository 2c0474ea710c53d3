"""A trace as steps and requests, each with its times, instead of calls."""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import chain, repeat
from typing import NamedTuple

from sluice.tracing.file import Line
from sluice.tracing.format import Abort, Add, Copied, End, Loaded, Record, Step
from sluice.types import BatchPlan, Bound, Chunk, PredictedStep, Tier


@dataclass(frozen=True, slots=True)
class Prefill:
    """A chunk of a prompt, or of tokens computed again, in one step."""

    request_id: int
    start: int
    length: int


@dataclass(frozen=True, slots=True)
class SliceRun:
    """A slice of the work on a chunk that takes several steps."""

    request_id: int
    start: int
    length: int
    first: int
    """The first work item of the slice."""
    stop: int
    total: int
    is_resident: bool
    """Whether work items are layers of a chunk whose context is on the device."""


class StepRun(NamedTuple):
    """A step that ended. Times are seconds since the header's."""

    step: int
    launched_at: float
    ended_at: float
    host_ms: float
    device_ms: float
    wait_ms: float
    num_decodes: int
    prefills: tuple[Prefill, ...]
    bound_by: Bound
    error: str | None
    stores: int
    """Pages to be copied from the device to a tier, or from the host to the disk."""
    loads: int
    """Pages to be copied to the device."""
    slices: tuple[SliceRun, ...]
    """A slice that completes its chunk is among the decodes or prefills as well."""
    micros: int = 0
    """What it added to the gaps of streams."""
    pace: PredictedStep | None = None
    """What it was expected to take, if steps have a target."""
    stage_micros: tuple[int, ...] = ()
    """What each stage of a pipeline computed."""
    with_drafts: int = 0
    """Rows with drafts, or with an open block."""
    brought: int = 0
    """Rows that brought tokens."""
    drafted: int = 0
    """Drafts of these rows."""
    accepted: int = 0
    """Drafts that were right."""

    @property
    def prefill_tokens(self) -> int:
        return sum(piece.length for piece in self.prefills)

    @property
    def is_mixed(self) -> bool:
        return self.num_decodes > 0 and (bool(self.prefills) or any(each.is_resident for each in self.slices))

    @property
    def has_no_chunk(self) -> bool:
        return self.num_decodes == 0 and not self.prefills

    @property
    def launch(self) -> tuple[float, float]:
        """When the engine launched it; on cpu, computed it."""
        return self.launched_at, self.launched_at + (self.device_ms - self.wait_ms) / 1000

    @property
    def wait(self) -> tuple[float, float]:
        """When the engine waited for it. The launches and waits of two steps never overlap."""
        return self.ended_at - self.wait_ms / 1000, self.ended_at


@dataclass(slots=True)
class RequestRun:
    """A request that was accepted. Times are seconds since the header's."""

    request_id: int
    added_at: float
    prompt_len: int
    admissions: int = 0
    admitted_at: float | None = None
    """Launch of its first chunk."""
    cached: int = 0
    """Tokens found in the cache at the first admission."""
    chunks: int = 0
    """Chunks of its prompt, or of tokens computed again; no decodes."""
    token_times: array[float] = field(default_factory=lambda: array("d"))
    """When each output token was known."""
    arrived_at: float | None = None
    """When it arrived at the server; None if that is not known."""
    draft_rows: int = 0
    """Rows that had drafts, and brought tokens."""
    drafted: int = 0
    accepted: int = 0
    priority_class: str = ""
    outputs_before: int = 0
    """Tokens that an engine before gave it."""
    end: End | None = None
    ended_at: float | None = None

    @property
    def is_continued(self) -> bool:
        """Whether an engine before gave it tokens."""
        return self.outputs_before > 0

    @property
    def preemptions(self) -> int:
        """Times that it was preempted and came back."""
        return max(0, self.admissions - 1)

    @property
    def outcome(self) -> str:
        """How it ended, in a word."""
        return "open" if self.end is None else self.end.reason.value


@dataclass(frozen=True, slots=True)
class RowFailure:
    step: int
    request_id: int
    message: str


@dataclass(frozen=True, slots=True)
class Refusal:
    request_id: int
    message: str


@dataclass(slots=True)
class TracedRun:
    """The content of a trace."""

    steps: list[StepRun] = field(default_factory=list)
    requests: dict[int, RequestRun] = field(default_factory=dict)
    refused: list[Refusal] = field(default_factory=list)
    row_failures: list[RowFailure] = field(default_factory=list)
    unended: int = 0
    """Steps in flight when the trace was closed."""
    failed_copies: int = 0
    """Copies between tiers that failed."""
    lost_calls: int = 0
    """Calls that should stand before the last step and do not: lines are gone."""


def read_run(lines: Iterable[Line]) -> TracedRun:
    """
    Raises:
        TraceError: the file is broken.
    """
    run, numbers, last_planned = TracedRun(), set[int](), 0
    for line in lines:
        numbers.update(_numbers(line.record))
        match line.record:
            case Step() as record:
                last_planned = max(last_planned, record.planned)
                _add_step(run, record)
            case Add(refused=None) as add:
                run.requests[add.request_id] = RequestRun(
                    add.request_id,
                    add.at,
                    add.prompt_len,
                    arrived_at=add.arrived_at,
                    priority_class=add.priority_class,
                    outputs_before=add.num_outputs,
                )
            case Add(refused=message) as add:
                run.refused.append(Refusal(add.request_id, message or ""))
            case Copied() as copied:
                run.failed_copies += sum(copy.error is not None for copy in copied.done)
                _end_requests(run, copied.ends, copied.at)
            case Loaded(error=str(error)) as loaded:
                run.row_failures.extend(RowFailure(loaded.step, end.request_id, error) for end in loaded.ends)
                _end_requests(run, loaded.ends, loaded.at)
            case Abort() as abort:
                _end_requests(run, abort.ends, abort.at)
    # Steps end in order, and all else is written at once, so every call before the last planned one stands somewhere.
    run.lost_calls = sum(number not in numbers for number in range(last_planned))
    return run


def _numbers(record: Record) -> Iterator[int]:
    """The numbers of a record's calls."""
    if isinstance(record, Step):
        yield record.planned
    if record.number is not None:
        yield record.number


def _add_step(run: TracedRun, record: Step) -> None:
    plan = record.plan
    if record.launched_at is None or record.ended_at is None or record.number is None:
        run.unended += 1
        return
    rows = kept(run, record)
    decodes = {each.chunk.request_id for each in plan.slices if each.is_decode}
    prefills = [chunk for chunk in plan.chunks[plan.num_decodes :] if chunk.request_id not in decodes]
    run.steps.append(
        StepRun(
            step=plan.step,
            launched_at=record.launched_at,
            ended_at=record.ended_at,
            host_ms=record.host_ms,
            device_ms=record.device_ms,
            wait_ms=record.wait_ms,
            num_decodes=len(plan.chunks) - len(prefills),
            prefills=tuple(Prefill(chunk.request_id, chunk.start, chunk.length) for chunk in prefills),
            bound_by=plan.bound_by,
            error=record.error,
            stores=sum(copy.target is not Tier.DEVICE for copy in plan.copies),
            loads=sum(copy.target is Tier.DEVICE for copy in plan.copies),
            slices=tuple(
                SliceRun(
                    each.chunk.request_id,
                    each.chunk.start,
                    each.chunk.length,
                    each.first,
                    each.stop,
                    each.total,
                    each.is_resident,
                )
                for each in plan.slices
            ),
            micros=record.micros,
            pace=plan.pace,
            stage_micros=record.stage_micros,
            with_drafts=sum(chunk.num_drafts > 0 for chunk in plan.chunks),
            brought=sum(row.num_tokens > 0 for row in rows if row.chunk.num_drafts),
            drafted=plan.num_drafts,
            accepted=sum(row.accepted for row in rows),
        )
    )
    run.failed_copies += sum(copy.error is not None for copy in record.copies)
    _admit(run, plan, record.launched_at)
    for chunk in prefills:
        if (request := run.requests.get(chunk.request_id)) is not None:
            request.chunks += 1
    for row in rows:
        request = run.requests.get(row.chunk.request_id)
        if request is not None and request.end is None:
            request.token_times.extend([record.ended_at] * row.num_tokens)
            _add_drafts(request, row)
    _add_failures(run, record)
    _end_requests(run, record.ends, record.ended_at)


def _add_drafts(request: RequestRun, row: Row) -> None:
    if row.num_tokens and row.chunk.num_drafts:
        request.draft_rows += 1
        request.drafted += row.chunk.num_drafts
        request.accepted += row.accepted


def _add_failures(run: TracedRun, record: Step) -> None:
    plan = record.plan
    for error in record.row_errors:
        if error.row < len(plan.chunks):
            run.row_failures.append(RowFailure(plan.step, plan.chunks[error.row].request_id, error.message))
    for error in record.slice_errors:
        if error.row < len(plan.slices):
            failed = run.requests.get(plan.slices[error.row].chunk.request_id)
            if failed is not None and failed.end is None:  # slices in flight behind it fail because of it
                run.row_failures.append(RowFailure(plan.step, failed.request_id, error.message))


def _admit(run: TracedRun, plan: BatchPlan, at: float) -> None:
    first = {chunk.request_id: chunk for chunk in (*plan.chunks, *(each.chunk for each in plan.slices))}
    for new in plan.new_slots:
        request, chunk = run.requests.get(new.request_id), first.get(new.request_id)
        if request is None or chunk is None:
            continue
        if request.admissions == 0:
            request.admitted_at, request.cached = at, chunk.start
        request.admissions += 1


def _end_requests(run: TracedRun, ends: Sequence[End], at: float) -> None:
    for end in ends:
        request = run.requests.get(end.request_id)
        if request is not None and request.end is None:
            request.end, request.ended_at = end, at


class Row(NamedTuple):
    """A row of a step that samples."""

    chunk: Chunk
    num_tokens: int
    """Tokens that it gave its request."""
    accepted: int
    """Drafts among these tokens."""


def kept(run: TracedRun, record: Step) -> list[Row]:
    """Return the rows of a step that sample, before the step is counted. A row may have brought more than it gave its
    request, behind a token that ended this."""
    ends = {end.request_id: end.num_outputs for end in record.ends}
    rows = []
    for (chunk, count), accepted in zip(sampled(record), chain(record.accepted, repeat(0)), strict=False):
        request = run.requests.get(chunk.request_id)
        if request is not None and request.end is None and request.request_id in ends:
            left = ends[request.request_id] - request.outputs_before - len(request.token_times)
            count = max(0, min(count, left))
        rows.append(Row(chunk, count, min(count, accepted)))
    return rows


def sampled(record: Step) -> Iterator[tuple[Chunk, int]]:
    """Yield the rows of a step that sample, and how many tokens each gave."""
    rows = [chunk for chunk in record.plan.chunks if chunk.samples]
    counts = record.counts if record.tokens is None else [len(row) for row in record.tokens]
    yield from zip(rows, counts, strict=False)

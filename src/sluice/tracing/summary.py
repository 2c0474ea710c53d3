"""A trace in numbers, and these as text for a terminal."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from sluice.tracing.classes import ClassSummary, report_classes, summarize_classes
from sluice.tracing.format import Header
from sluice.tracing.gaps import Cause, Gap, find_gaps
from sluice.tracing.pacing import PacingSummary, report_pace, summarize_pace
from sluice.tracing.request_table import RequestRow, acceptance_length, row_of, table_of
from sluice.tracing.run import Refusal, RowFailure, SliceRun, StepRun, TracedRun
from sluice.tracing.spread import LatencySpread, spread

GAPS_SHOWN = 20
FAILURES_SHOWN = 10
NAMES_SHOWN = 8


@dataclass(frozen=True, slots=True)
class StepFailure:
    step: int
    error: str


@dataclass(frozen=True, slots=True)
class Preempted:
    request_id: int
    times: int


@dataclass(frozen=True, slots=True)
class TraceSummary:
    """The numbers that `sluice trace` shows."""

    model: str
    sluice: str
    token_ids: bool
    depth: int
    seconds: float
    """Seconds from the start to the last event."""
    steps: int
    failed_steps: int
    unended_steps: int
    """Steps in flight at the end."""
    truncated: bool
    """The last line was cut, and left out."""
    lost_calls: int
    """Calls of the scheduler whose lines are missing from the middle: no figure counts them."""
    decode_steps: int
    prefill_steps: int
    mixed_steps: int
    slice_steps: int
    """Steps that complete no chunk and hold a slice of one of a context longer than the device."""
    other_steps: int
    """Steps with copies between tiers alone."""
    stored_pages: int
    loaded_pages: int
    failed_copies: int
    decode_tokens: int
    """Input tokens: one for each decode."""
    prefill_tokens: int
    output_tokens: int
    draft_rows: int
    """Rows that had drafts."""
    drafted: int
    """Tokens that were guessed."""
    accepted: int
    """Drafts that were right."""
    acceptance_length: float | None
    """Tokens that a row with drafts brought, on average; None if there were none."""
    bound_by: dict[str, int]
    """Steps by the limit that kept them from holding more, most first."""
    device_ms: LatencySpread
    """Time of a step in the runner."""
    host_ms: LatencySpread
    """Time of a step in the scheduler."""
    stages_idle: tuple[float, ...]
    """Share of the time with steps in flight in which each stage of a pipeline computed nothing; () without one."""
    pace: PacingSummary | None
    """How steps kept an ITL target, if they had one."""
    blocks: BlockSummary | None
    """How blocks were filled in, by a model that does."""
    classes: dict[str, ClassSummary]
    """How requests kept the TTFT targets of their priority classes, if they had any."""
    requests: int
    outcomes: dict[str, int]
    prompt_tokens: int
    """Prompt tokens of requests that were admitted."""
    cached_tokens: int
    """Prompt tokens that were found in the cache at the first admission."""
    preempted: tuple[Preempted, ...]
    """Requests that were preempted and came back."""
    refused: tuple[Refusal, ...]
    step_failures: tuple[StepFailure, ...]
    row_failures: tuple[RowFailure, ...]
    gap_ms: float
    """Gaps longer than this are listed."""
    gaps: tuple[Gap, ...]
    table: tuple[RequestRow, ...]


def summarize(header: Header, run: TracedRun, gap_ms: float, *, truncated: bool = False) -> TraceSummary:
    """Fold a run into numbers."""
    requests, steps = list(run.requests.values()), run.steps
    admitted = [request for request in requests if request.admissions]
    mixed = sum(step.is_mixed for step in steps)
    drafted = [] if header.setup.limits.block_size else [step for step in steps if step.with_drafts]
    rows, accepted = sum(step.with_drafts for step in drafted), sum(step.accepted for step in drafted)
    with_decodes = sum(step.num_decodes > 0 for step in steps)
    return TraceSummary(
        model=header.model,
        sluice=header.sluice,
        token_ids=header.token_ids,
        depth=header.depth,
        seconds=_last_moment(run),
        steps=len(steps),
        failed_steps=sum(step.error is not None for step in steps),
        unended_steps=run.unended,
        truncated=truncated,
        lost_calls=run.lost_calls,
        decode_steps=with_decodes - mixed,
        prefill_steps=sum(step.num_decodes == 0 and bool(step.prefills) for step in steps),
        mixed_steps=mixed,
        slice_steps=sum(step.has_no_chunk and bool(step.slices) for step in steps),
        other_steps=sum(step.has_no_chunk and not step.slices for step in steps),
        stored_pages=sum(step.stores for step in steps),
        loaded_pages=sum(step.loads for step in steps),
        failed_copies=run.failed_copies,
        decode_tokens=sum(step.num_decodes for step in steps),
        prefill_tokens=sum(step.prefill_tokens for step in steps),
        output_tokens=sum(len(request.token_times) for request in requests),
        draft_rows=rows,
        drafted=sum(step.drafted for step in drafted),
        accepted=accepted,
        acceptance_length=acceptance_length(accepted, rows),
        bound_by=_counted(step.bound_by.value for step in steps),
        device_ms=spread([step.device_ms for step in steps]),
        host_ms=spread([step.host_ms for step in steps]),
        stages_idle=_stages_idle(steps),
        pace=summarize_pace(steps),
        blocks=summarize_blocks(steps, header.setup.limits.block_size),
        classes=summarize_classes(run, header.setup.limits),
        requests=len(requests),
        outcomes=_counted(request.outcome for request in requests),
        prompt_tokens=sum(request.prompt_len for request in admitted),
        cached_tokens=sum(request.cached for request in admitted),
        preempted=tuple(Preempted(r.request_id, r.preemptions) for r in requests if r.preemptions),
        refused=tuple(run.refused),
        step_failures=tuple(StepFailure(step.step, step.error) for step in steps if step.error is not None),
        row_failures=tuple(run.row_failures),
        gap_ms=gap_ms,
        gaps=tuple(find_gaps(run, gap_ms)),
        table=tuple(row_of(request, header.setup.limits) for request in requests),
    )


def _stages_idle(steps: Sequence[StepRun]) -> tuple[float, ...]:
    timed = [step for step in steps if step.stage_micros]
    busy = [sum(micros) / 1e6 for micros in zip(*(step.stage_micros for step in timed), strict=True)]
    in_flight, until = 0.0, 0.0
    for step in timed:  # in the order in which they were launched, and ended
        in_flight += step.ended_at - max(step.launched_at, until)
        until = step.ended_at
    return tuple(max(0.0, 1 - each / in_flight) for each in busy)


def _last_moment(run: TracedRun) -> float:
    moments = [step.ended_at for step in run.steps[-1:]]
    moments += [request.ended_at or request.added_at for request in run.requests.values()]
    return max(moments, default=0.0)


def _counted(values: Iterable[str]) -> dict[str, int]:
    return dict(Counter(values).most_common())


def report(summary: TraceSummary, *, table: bool) -> str:
    """Return the whole summary as text; with `table`, with a line for each request."""
    blocks = [
        list(block)
        for block in (
            _run(summary),
            _bounds(summary),
            report_pace(summary.pace),
            report_blocks(summary.blocks),
            report_classes(summary.classes),
            _trouble(summary),
            _gaps(summary),
        )
    ]
    if table:
        blocks.append(list(table_of(summary.table, drafts=bool(summary.draft_rows), classes=bool(summary.classes))))
    return "\n\n".join("\n".join(block) for block in blocks if block)


def _run(summary: TraceSummary) -> Iterator[str]:
    steps, prompt = summary.steps, summary.prompt_tokens
    yield f"{summary.model}, sluice {summary.sluice}, {summary.depth} in flight, {summary.seconds:.3f} s"
    yield (
        f"steps     {steps}: {summary.mixed_steps} mixed ({_share(summary.mixed_steps, steps)}),"
        f" {summary.decode_steps} of decodes, {summary.prefill_steps} of prefill"
        + (f", {summary.slice_steps} of slices of chunks" if summary.slice_steps else "")
        + (f", {summary.other_steps} of copies alone" if summary.other_steps else "")
        + (f"; {summary.unended_steps} in flight at the end" if summary.unended_steps else "")
    )
    yield (
        f"tokens    {summary.prefill_tokens} prefilled, {summary.decode_tokens} decoded,"
        f" {summary.output_tokens} sampled"
    )
    if summary.draft_rows:
        yield (
            f"drafts    {summary.drafted} in {summary.draft_rows} rows, {summary.accepted} accepted"
            f" ({_share(summary.accepted, summary.drafted)}); these rows brought {summary.acceptance_length:.2f} tokens"
        )
    yield f"requests  {summary.requests}: {_counts(summary.outcomes) or 'none'}"
    yield f"cache     {summary.cached_tokens} of {prompt} prompt tokens ({_share(summary.cached_tokens, prompt)})"
    if summary.stored_pages or summary.loaded_pages:
        yield (
            f"tiers     {summary.stored_pages} pages stored, {summary.loaded_pages} loaded,"
            f" {summary.failed_copies} of these copies failed"
        )
    yield f"runner    {_spread(summary.device_ms)} a step"
    yield f"scheduler {_spread(summary.host_ms)} a step"
    if summary.stages_idle:
        yield "stages    idle while steps were in flight: " + ", ".join(f"{idle:.1%}" for idle in summary.stages_idle)


def _bounds(summary: TraceSummary) -> Iterator[str]:
    if summary.bound_by:
        yield "what kept steps from holding more:"
    for name, count in summary.bound_by.items():
        yield f"  {name:<28} {count:>7}  {_share(count, summary.steps)}"


def _trouble(summary: TraceSummary) -> Iterator[str]:
    if summary.lost_calls:
        yield f"lines are missing: {summary.lost_calls} calls of the scheduler are in no figure here"
    if summary.preempted:
        count = sum(each.times for each in summary.preempted)
        times = "once" if count == 1 else f"{count} times"
        names = _names([each.request_id for each in summary.preempted])
        yield f"preempted for want of memory or for a higher priority: {times}; {names}"
    failures = [f"step {item.step}: {item.error}" for item in summary.step_failures]
    failures += [f"step {item.step}, request {item.request_id}: {item.message}" for item in summary.row_failures]
    failures += [f"request {item.request_id} refused: {item.message}" for item in summary.refused]
    if failures:
        yield f"failures: {len(failures)}"
        yield from (f"  {line}" for line in failures[:FAILURES_SHOWN])
        if len(failures) > FAILURES_SHOWN:
            yield f"  and {len(failures) - FAILURES_SHOWN} more (--json shows all)"


def _gaps(summary: TraceSummary) -> Iterator[str]:
    count = sum(len(gap.request_ids) for gap in summary.gaps)
    yield f"gaps of more than {summary.gap_ms:g} ms between two tokens of a stream: {count}"
    for gap in summary.gaps[:GAPS_SHOWN]:
        yield f"  {gap.ms:.1f} ms at {gap.start:.3f} s: {_names(gap.request_ids)} waited; {_why(gap)}"
        yield from (f"    {_cause(cause)}" for cause in gap.causes)
        if gap.arrivals:
            yield f"    {_arrived(gap)}"
    if len(summary.gaps) > GAPS_SHOWN:
        yield f"  and {len(summary.gaps) - GAPS_SHOWN} more (--json shows all)"


def _why(gap: Gap) -> str:
    steps = "1 step" if gap.num_steps == 1 else f"{gap.num_steps} steps"
    return f"{steps} took {gap.runner_ms:.1f} ms of it"


def _arrived(gap: Gap) -> str:
    came = [f"request {each.request_id} with {each.prompt_len} prompt tokens" for each in gap.arrivals]
    more = gap.num_arrivals - len(came)
    return f"arrived meanwhile: {', '.join(came + ([f'{more} more'] if more else []))}"


def _cause(cause: Cause) -> str:
    sliced = {each.request_id for each in cause.slices}
    prefills = [piece for piece in cause.prefills if piece.request_id not in sliced]
    what = [f"request {p.request_id} prefilled {p.length} tokens from {p.start}" for p in prefills[:NAMES_SHOWN]]
    if len(prefills) > NAMES_SHOWN:
        what.append(f"{len(prefills) - NAMES_SHOWN} more prefills")
    what += [_slice(each) for each in cause.slices]
    what.append("1 decode" if cause.num_decodes == 1 else f"{cause.num_decodes} decodes")
    failed = ", failed" if cause.failed else ""
    return f"step {cause.step}{failed}, {cause.ms:.1f} ms: {', '.join(what)}"


def _slice(each: SliceRun) -> str:
    tokens = f"{each.length} {'token' if each.length == 1 else 'tokens'}"
    if each.is_resident:
        layers = f"layers {each.first} to {each.stop} of {each.total}"
        return f"request {each.request_id} computed {layers} of {tokens} from {each.start}"
    return (
        f"request {each.request_id} computed {tokens.replace(' ', ' offloaded ')} from {each.start}, work items"
        f" {each.first} to {each.stop} of {each.total}"
    )


def _names(ids: Sequence[int]) -> str:
    if len(ids) == 1:
        return f"request {ids[0]}"
    more = f" and {len(ids) - NAMES_SHOWN} more" if len(ids) > NAMES_SHOWN else ""
    return f"requests {', '.join(map(str, ids[:NAMES_SHOWN]))}{more}"


def _counts(counts: dict[str, int]) -> str:
    return ", ".join(f"{count} {name}" for name, count in counts.items())


def _share(part: int, whole: int) -> str:
    return f"{100 * part / whole:.1f}%" if whole else "-"


def _spread(spread: LatencySpread) -> str:
    return f"p50 {spread.p50:.2f} ms, p99 {spread.p99:.2f} ms, max {spread.max:.2f} ms"


class BlockSummary(NamedTuple):
    """Counts over a run."""

    block_size: int
    blocks: int
    """Blocks that became whole."""
    passes: int
    """Passes of all blocks, with those that never became whole."""


def summarize_blocks(steps: Sequence[StepRun], block_size: int) -> BlockSummary | None:
    """Return the counts; None if the model generates token by token, with blocks of size 0."""
    if not block_size:
        return None
    return BlockSummary(block_size, sum(step.brought for step in steps), sum(step.with_drafts for step in steps))


def report_blocks(summary: BlockSummary | None) -> Sequence[str]:
    """Return the lines of a report; none without blocks."""
    if summary is None:
        return ()
    each = f", {summary.passes / summary.blocks:.2f} each" if summary.blocks else ""
    return (f"blocks of {summary.block_size} tokens: {summary.blocks} filled in by {summary.passes} passes{each}",)

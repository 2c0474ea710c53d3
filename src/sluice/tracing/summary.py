"""A trace in numbers."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import pairwise

from sluice.tracing.format import Header
from sluice.tracing.gaps import Gap, find_gaps
from sluice.tracing.run import Refusal, RequestRun, RowFailure, Run, StepRun, outcome


@dataclass(frozen=True, slots=True)
class Spread:
    """Milliseconds."""

    p50: float
    p99: float
    max: float


@dataclass(frozen=True, slots=True)
class StepFailure:
    step: int
    error: str


@dataclass(frozen=True, slots=True)
class SentBack:
    request_id: int
    times: int


@dataclass(frozen=True, slots=True)
class RequestRow:
    """One request. Times in milliseconds; None: it never came to that."""

    request_id: int
    added_at: float
    """Seconds since the trace began."""
    prompt_tokens: int
    cached_tokens: int
    output_tokens: int
    chunks: int
    sent_back: int
    queued_ms: float | None
    """From its arrival to the launch of its first chunk."""
    ttft_ms: float | None
    """From its arrival to its first token."""
    itl_p50_ms: float | None
    itl_max_ms: float | None
    outcome: str
    error: str | None


@dataclass(frozen=True, slots=True)
class Summary:
    """What `sluice trace` shows."""

    model: str
    sluice: str
    token_ids: bool
    depth: int
    seconds: float
    """To the last thing that happened."""
    steps: int
    failed_steps: int
    unended_steps: int
    """In flight at the end."""
    truncated: bool
    """The last line is cut and was left out."""
    lost_calls: int
    """Calls of the scheduler that lines in the middle must have held: no figure counts them."""
    decode_steps: int
    prefill_steps: int
    mixed_steps: int
    offloaded_steps: int
    """With no chunk that they complete, but a part of one of a context longer than the device."""
    other_steps: int
    """With neither: copies between tiers."""
    stored_pages: int
    loaded_pages: int
    failed_copies: int
    decode_tokens: int
    """Input tokens: one a decode."""
    prefill_tokens: int
    output_tokens: int
    bound_by: dict[str, int]
    """Steps by the limit that kept them from holding more, most first."""
    device_ms: Spread
    """Of steps, in the runner."""
    host_ms: Spread
    """Of steps, in the scheduler."""
    requests: int
    outcomes: dict[str, int]
    prompt_tokens: int
    """Of requests that were admitted."""
    cached_tokens: int
    """Of these, found in the cache at the first admission."""
    sent_back: tuple[SentBack, ...]
    """Requests that were retracted, or made way, and came back."""
    refused: tuple[Refusal, ...]
    step_failures: tuple[StepFailure, ...]
    row_failures: tuple[RowFailure, ...]
    gap_ms: float
    """Gaps longer than this are told."""
    gaps: tuple[Gap, ...]
    table: tuple[RequestRow, ...]


def summarize(header: Header, run: Run, gap_ms: float, *, truncated: bool = False) -> Summary:
    """Fold a run into numbers."""
    requests, steps = list(run.requests.values()), run.steps
    admitted = [request for request in requests if request.admissions]
    mixed = sum(step.is_mixed for step in steps)
    with_decodes = sum(step.num_decodes > 0 for step in steps)
    return Summary(
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
        offloaded_steps=sum(_has_no_chunk(step) and bool(step.offloaded) for step in steps),
        other_steps=sum(_has_no_chunk(step) and not step.offloaded for step in steps),
        stored_pages=sum(step.stores for step in steps),
        loaded_pages=sum(step.loads for step in steps),
        failed_copies=run.failed_copies,
        decode_tokens=sum(step.num_decodes for step in steps),
        prefill_tokens=sum(step.prefill_tokens for step in steps),
        output_tokens=sum(len(request.token_times) for request in requests),
        bound_by=_counted(step.bound_by.value for step in steps),
        device_ms=spread([step.device_ms for step in steps]),
        host_ms=spread([step.host_ms for step in steps]),
        requests=len(requests),
        outcomes=_counted(outcome(request) for request in requests),
        prompt_tokens=sum(request.prompt_len for request in admitted),
        cached_tokens=sum(request.cached for request in admitted),
        sent_back=tuple(SentBack(r.request_id, r.sent_back) for r in requests if r.sent_back),
        refused=tuple(run.refused),
        step_failures=tuple(StepFailure(step.step, step.error) for step in steps if step.error is not None),
        row_failures=tuple(run.row_failures),
        gap_ms=gap_ms,
        gaps=tuple(find_gaps(run, gap_ms)),
        table=tuple(_row(request) for request in requests),
    )


def spread(values: Iterable[float]) -> Spread:
    """Percentiles by nearest rank; zeros of nothing."""
    ordered = sorted(values)
    if not ordered:
        return Spread(0.0, 0.0, 0.0)
    return Spread(percentile(ordered, 0.5), percentile(ordered, 0.99), ordered[-1])


def percentile(ordered: list[float], share: float) -> float:
    """The smallest value that `share` of the (sorted) values do not exceed."""
    return ordered[max(0, math.ceil(share * len(ordered)) - 1)]


def _has_no_chunk(step: StepRun) -> bool:
    return step.num_decodes == 0 and not step.prefills


def _row(request: RequestRun) -> RequestRow:
    times, end = request.token_times, request.end
    itl = sorted((b - a) * 1000 for a, b in pairwise(times))
    return RequestRow(
        request_id=request.request_id,
        added_at=request.added_at,
        prompt_tokens=request.prompt_len,
        cached_tokens=request.cached,
        output_tokens=len(times),
        chunks=request.chunks,
        sent_back=request.sent_back,
        queued_ms=None if request.admitted_at is None else _ms(request.admitted_at - request.added_at),
        ttft_ms=_ms(times[0] - request.added_at) if times else None,
        itl_p50_ms=round(percentile(itl, 0.5), 3) if itl else None,
        itl_max_ms=round(itl[-1], 3) if itl else None,
        outcome=outcome(request),
        error=None if end is None else end.error,
    )


def _last_moment(run: Run) -> float:
    moments = [step.ended_at for step in run.steps[-1:]]
    moments += [request.ended_at or request.added_at for request in run.requests.values()]
    return max(moments, default=0.0)


def _counted(values: Iterable[str]) -> dict[str, int]:
    return dict(Counter(values).most_common())


def _ms(seconds: float) -> float:
    return round(seconds * 1000, 3)

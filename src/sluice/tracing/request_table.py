"""A line for each request of a trace."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

from sluice.tracing.classes import is_on_time, ttft_ms
from sluice.tracing.run import RequestRun
from sluice.tracing.spread import percentile
from sluice.types import SchedulerLimits

HEAD = (
    *("request", "at s", "prompt", "cached", "output", "chunks", "preempted"),
    *("queued ms", "TTFT ms", "ITL p50 ms", "ITL max ms", "end"),
)


@dataclass(frozen=True, slots=True)
class RequestRow:
    """One request. Times are milliseconds; None: it did not happen."""

    request_id: int
    added_at: float
    """Seconds since the trace began."""
    prompt_tokens: int
    cached_tokens: int
    output_tokens: int
    chunks: int
    preemptions: int
    queued_ms: float | None
    """Milliseconds from its arrival to the launch of its first chunk."""
    ttft_ms: float | None
    """Milliseconds from its arrival at the server, if that is known, to its first token."""
    itl_p50_ms: float | None
    itl_max_ms: float | None
    drafted: int
    """Tokens that were guessed for it."""
    accepted: int
    """Drafts that were right."""
    acceptance_length: float | None
    """Tokens that its rows with drafts brought, on average; None if it had none."""
    outcome: str
    error: str | None
    priority_class: str = ""
    on_time: bool | None = None
    """Whether the first token came within the TTFT target of its class; None without the one or the other."""


def row_of(request: RequestRun, limits: SchedulerLimits) -> RequestRow:
    """Fold a request into its line."""
    times, end = request.token_times, request.end
    itl = sorted((b - a) * 1000 for a, b in pairwise(times))
    return RequestRow(
        request_id=request.request_id,
        added_at=request.added_at,
        prompt_tokens=request.prompt_len,
        cached_tokens=request.cached,
        output_tokens=len(times),
        chunks=request.chunks,
        preemptions=request.preemptions,
        queued_ms=None if request.admitted_at is None else _ms(request.admitted_at - request.added_at),
        ttft_ms=ttft_ms(request),
        itl_p50_ms=round(percentile(itl, 0.5), 3) if itl else None,
        itl_max_ms=round(itl[-1], 3) if itl else None,
        drafted=request.drafted,
        accepted=request.accepted,
        acceptance_length=acceptance_length(request.accepted, request.draft_rows),
        outcome=request.outcome,
        error=None if end is None else end.error,
        priority_class=request.priority_class,
        on_time=is_on_time(request, limits),
    )


def acceptance_length(accepted: int, rows: int) -> float | None:
    """Return the tokens that rows with drafts brought, on average: each one more than were accepted."""
    return round(1 + accepted / rows, 3) if rows else None


def _ms(seconds: float) -> float:
    return round(seconds * 1000, 3)


def _cells(row: RequestRow) -> tuple[str, ...]:
    numbers = (row.prompt_tokens, row.cached_tokens, row.output_tokens, row.chunks, row.preemptions)
    times = (row.queued_ms, row.ttft_ms, row.itl_p50_ms, row.itl_max_ms)
    shown = ("-" if value is None else f"{value:.1f}" for value in times)
    return str(row.request_id), f"{row.added_at:.3f}", *map(str, numbers), *shown, row.outcome


def _class_cells(row: RequestRow) -> tuple[str, str]:
    return row.priority_class or "-", "-" if row.on_time is None else "yes" if row.on_time else "no"


def _draft_cells(row: RequestRow) -> tuple[str, ...]:
    length = "-" if row.acceptance_length is None else f"{row.acceptance_length:.2f}"
    return str(row.drafted), str(row.accepted), length


class Columns(NamedTuple):
    """Further columns of the table."""

    head: tuple[str, ...]
    cells: Callable[[RequestRow], tuple[str, ...]]


CLASS_COLUMNS = Columns(("class", "on time"), _class_cells)
DRAFT_COLUMNS = Columns(("drafted", "accepted", "a row"), _draft_cells)


def table_of(rows: Sequence[RequestRow], *, drafts: bool, classes: bool) -> Iterator[str]:
    """Yield the lines of the table, with the columns of drafts and of classes if asked for."""
    more = [*([DRAFT_COLUMNS] if drafts else ()), *([CLASS_COLUMNS] if classes else ())]
    head = (*HEAD, *(name for columns in more for name in columns.head))
    lines = [head, *((*_cells(row), *(cell for columns in more for cell in columns.cells(row))) for row in rows)]
    widths = [max(len(line[column]) for line in lines) for column in range(len(head))]
    for line in lines:
        yield "  ".join(cell.rjust(width) for cell, width in zip(line, widths, strict=True))

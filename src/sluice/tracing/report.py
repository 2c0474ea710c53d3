"""A summary as text for a terminal."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from sluice.tracing.gaps import Cause, Gap
from sluice.tracing.summary import RequestRow, Spread, Summary

GAPS_SHOWN = 20
FAILURES_SHOWN = 10
NAMES_SHOWN = 8
HEAD = (
    *("request", "at s", "prompt", "cached", "output", "chunks", "back"),
    *("queued ms", "TTFT ms", "ITL p50 ms", "ITL max ms", "end"),
)


def report(summary: Summary, *, table: bool) -> str:
    """All of it; with `table`, a line for each request too."""
    blocks = [list(block) for block in (_run(summary), _bounds(summary), _trouble(summary), _gaps(summary))]
    if table:
        blocks.append(list(_table(summary.table)))
    return "\n\n".join("\n".join(block) for block in blocks if block)


def _run(summary: Summary) -> Iterator[str]:
    steps, prompt = summary.steps, summary.prompt_tokens
    yield f"{summary.model}, sluice {summary.sluice}, {summary.depth} in flight, {summary.seconds:.3f} s"
    yield (
        f"steps     {steps}: {summary.mixed_steps} mixed ({_share(summary.mixed_steps, steps)}),"
        f" {summary.decode_steps} of decodes, {summary.prefill_steps} of prefill"
        + (f", {summary.offloaded_steps} of parts of offloaded chunks" if summary.offloaded_steps else "")
        + (f", {summary.other_steps} of copies alone" if summary.other_steps else "")
        + (f"; {summary.unended_steps} in flight at the end" if summary.unended_steps else "")
    )
    yield (
        f"tokens    {summary.prefill_tokens} prefilled, {summary.decode_tokens} decoded,"
        f" {summary.output_tokens} sampled"
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


def _bounds(summary: Summary) -> Iterator[str]:
    if summary.bound_by:
        yield "what kept steps from holding more:"
    for name, count in summary.bound_by.items():
        yield f"  {name:<28} {count:>7}  {_share(count, summary.steps)}"


def _trouble(summary: Summary) -> Iterator[str]:
    if summary.lost_calls:
        yield f"lines are missing: {summary.lost_calls} calls of the scheduler are in no figure here"
    if summary.sent_back:
        count = sum(each.times for each in summary.sent_back)
        times = "once" if count == 1 else f"{count} times"
        names = _names([each.request_id for each in summary.sent_back])
        yield f"sent back for want of memory or for a higher priority: {times}; {names}"
    failures = [f"step {item.step}: {item.error}" for item in summary.step_failures]
    failures += [f"step {item.step}, request {item.request_id}: {item.message}" for item in summary.row_failures]
    failures += [f"request {item.request_id} refused: {item.message}" for item in summary.refused]
    if failures:
        yield f"failures: {len(failures)}"
        yield from (f"  {line}" for line in failures[:FAILURES_SHOWN])
        if len(failures) > FAILURES_SHOWN:
            yield f"  and {len(failures) - FAILURES_SHOWN} more (--json shows all)"


def _gaps(summary: Summary) -> Iterator[str]:
    count = sum(len(gap.request_ids) for gap in summary.gaps)
    yield f"gaps of more than {summary.gap_ms:g} ms between two tokens of a stream: {count}"
    for gap in summary.gaps[:GAPS_SHOWN]:
        yield f"  {gap.ms:.1f} ms at {gap.start:.3f} s: {_names(gap.request_ids)} waited; {_why(gap)}"
        yield from (f"    {_cause(cause)}" for cause in gap.causes)
    if len(summary.gaps) > GAPS_SHOWN:
        yield f"  and {len(summary.gaps) - GAPS_SHOWN} more (--json shows all)"


def _why(gap: Gap) -> str:
    steps = "1 step" if gap.num_steps == 1 else f"{gap.num_steps} steps"
    return f"{steps} took {gap.runner_ms:.1f} ms of it"


def _cause(cause: Cause) -> str:
    offloaded = {part.request_id for part in cause.offloaded}
    prefills = [piece for piece in cause.prefills if piece.request_id not in offloaded]
    what = [f"request {p.request_id} prefilled {p.length} tokens from {p.start}" for p in prefills[:NAMES_SHOWN]]
    if len(prefills) > NAMES_SHOWN:
        what.append(f"{len(prefills) - NAMES_SHOWN} more prefills")
    what += [
        f"request {part.request_id} offloaded {part.length} {'token' if part.length == 1 else 'tokens'} from"
        f" {part.start}, units {part.first} to {part.stop} of {part.total}"
        for part in cause.offloaded
    ]
    what.append("1 decode" if cause.num_decodes == 1 else f"{cause.num_decodes} decodes")
    failed = ", failed" if cause.failed else ""
    return f"step {cause.step}{failed}, {cause.ms:.1f} ms: {', '.join(what)}"


def _table(rows: Sequence[RequestRow]) -> Iterator[str]:
    lines = [HEAD, *(_cells(row) for row in rows)]
    widths = [max(len(line[column]) for line in lines) for column in range(len(HEAD))]
    for line in lines:
        yield "  ".join(cell.rjust(width) for cell, width in zip(line, widths, strict=True))


def _cells(row: RequestRow) -> tuple[str, ...]:
    numbers = (row.prompt_tokens, row.cached_tokens, row.output_tokens, row.chunks, row.sent_back)
    times = (row.queued_ms, row.ttft_ms, row.itl_p50_ms, row.itl_max_ms)
    shown = ("-" if value is None else f"{value:.1f}" for value in times)
    return str(row.request_id), f"{row.added_at:.3f}", *map(str, numbers), *shown, row.outcome


def _names(ids: Sequence[int]) -> str:
    if len(ids) == 1:
        return f"request {ids[0]}"
    more = f" and {len(ids) - NAMES_SHOWN} more" if len(ids) > NAMES_SHOWN else ""
    return f"requests {', '.join(map(str, ids[:NAMES_SHOWN]))}{more}"


def _counts(counts: dict[str, int]) -> str:
    return ", ".join(f"{count} {name}" for name, count in counts.items())


def _share(part: int, whole: int) -> str:
    return f"{100 * part / whole:.1f}%" if whole else "-"


def _spread(spread: Spread) -> str:
    return f"p50 {spread.p50:.2f} ms, p99 {spread.p99:.2f} ms, max {spread.max:.2f} ms"

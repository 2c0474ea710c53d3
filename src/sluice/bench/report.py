"""The table that `sluice bench` prints, and the notes below it, which the HTML report shows too."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from sluice.bench.metrics import Spread, Summary, errors, parse_goodput, percentile, summarize
from sluice.bench.records import CountedBy, Record, Run
from sluice.bench.results import BenchResult, served

HEADINGS = ("mean", "p50", "p90", "p95", "p99", "max")
NAME_WIDTH, NUMBER_WIDTH = 24, 10
LATE_MATTERS = 0.1
"""The client's own delay is worth a note from this share of the median TTFT."""
CACHED_MATTERS = 0.02
"""Share of prompt tokens from a cache that is worth a note, if there should be none."""


class Section(NamedTuple):
    """Latencies that belong together: those of a class, or those around long prompts."""

    name: str
    detail: str
    rows: Mapping[str, Spread]
    is_class: bool = True


def summaries(result: BenchResult) -> list[Summary]:
    """Return the numbers of each run, with the goodput limits it was measured with."""
    limits = result.settings.get("run", {}).get("goodput")
    goodput = None if limits is None else parse_goodput(limits)
    return [summarize(run.requests, goodput) for run in result.runs]


def sections(summary: Summary) -> Iterator[Section]:
    """Return the latencies that table and page show."""
    kinds = summary.by_kind if len(summary.by_kind) > 1 else {}
    for name, found in (("all requests", summary.all), *kinds.items()):
        yield Section(name, f"{found.requests}, {found.failed} failed", found.named())
    if summary.windows:
        name, detail = (
            "while a long prompt was in prefill",
            f"{summary.windows} windows, {summary.window_seconds:.2f} s",
        )
        rows = {"ITL inside": summary.itl_in_windows, "ITL outside": summary.itl_outside}
        yield Section(name, detail, rows, is_class=False)


def table(result: BenchResult) -> str:
    """Return the whole table, for a terminal."""
    lines = [title(result), ""]
    for index, (run, summary) in enumerate(zip(result.runs, summaries(result), strict=True), start=1):
        if len(result.runs) > 1:
            lines.append(f"run {index} of {len(result.runs)}")
        lines += [*_run_lines(run, summary, result.settings), ""]
    return "\n".join(lines)


def title(result: BenchResult) -> str:
    """Return what was measured, and when."""
    target = result.target
    return f"{target['url'] or 'in process'} · {served(target)} · {result.runs[0].started}"


def _run_lines(run: Run, summary: Summary, settings: Mapping[str, Any]) -> Iterator[str]:
    yield from _totals(summary)
    yield ""
    for section in sections(summary):
        yield f"{section.name} ({section.detail}), ms"
        if section.is_class:
            yield " " * NAME_WIDTH + "".join(f"{heading:>{NUMBER_WIDTH}}" for heading in HEADINGS) + f"{'n':>8}"
        for label, values in section.rows.items():
            numbers = "".join(f"{text:>{NUMBER_WIDTH}}" for text in figures(values))
            yield f"  {label:<{NAME_WIDTH - 2}}{numbers}{values.count:>8}"
        yield ""
    if summary.failed:
        yield "failed"
        for item in errors(run.requests):
            wait = milliseconds(item.longest_wait)
            yield f"  {item.count} x {item.kind}: {item.message} (waited up to {wait} ms)"
        yield ""
    for remark in remarks(run, summary, settings):
        yield f"note: {remark}"


def _totals(summary: Summary) -> Iterator[str]:
    yield (
        f"{summary.requests} requests, {summary.failed} failed, in {summary.seconds:.2f} s"
        f" ({summary.requests_per_second:.2f} requests/s)"
    )
    cached = "" if summary.cached_tokens is None else f", {summary.cached_tokens} of them cached"
    yield f"input    {summary.prompt_tokens:>8} tokens  {summary.input_per_second:>10.1f} tokens/s{cached}"
    yield f"output   {summary.output_tokens:>8} tokens  {summary.output_per_second:>10.1f} tokens/s"
    if summary.good is not None:
        share = 100 * summary.good / summary.requests
        yield f"goodput  {summary.good:>8} requests{summary.good_per_second:>9.2f} requests/s, {share:.1f}% of all"


def figures(values: Spread) -> list[str]:
    """Return mean, percentiles and maximum in milliseconds, in the order of `HEADINGS`."""
    found = values.figures()
    return [milliseconds(found[heading]) for heading in HEADINGS]


def milliseconds(seconds: float | None) -> str:
    if seconds is None:
        return "-"
    number = 1000 * seconds
    return f"{number:.0f}" if abs(number) >= 10_000 else f"{number:.1f}" if abs(number) >= 100 else f"{number:.2f}"


def streams_nothing(records: Sequence[Record]) -> bool:
    """Return whether every answer of several tokens came in one event."""
    longer = [record for record in records if record.num_tokens > 1]
    return bool(longer) and all(len(record.arrivals) == 1 for record in longer)


def _begin_alike(settings: Mapping[str, Any]) -> bool:
    """Return whether prompts of this workload begin alike, so that a prefix cache finds some of them."""
    workload, target = settings.get("workload", {}), settings.get("target", {})
    return bool(
        workload.get("shared_prefix_tokens", 0)
        or workload.get("turns", 1) > 1
        or not workload.get("unique_prompts", True)
        or target.get("endpoint") == "chat"  # its template precedes every prompt
    )


def remarks(run: Run, summary: Summary, settings: Mapping[str, Any]) -> Iterator[str]:
    """Return what readers must know to judge the numbers, one sentence each.

    Args:
        settings: the settings of the result that holds the run.
    """
    records = run.requests
    if summary.failed:
        yield (
            f"{summary.failed} of {summary.requests} requests failed; the latencies of what they did not give are in"
            " no percentile"
        )
    if streams_nothing(records):
        yield "the server does not stream: every answer came in one event, so ITL and TPOT are 0 and TTFT is the whole"
    elif summary.bundled_events:
        share = 100 * summary.bundled_events / summary.events
        yield (
            f"{share:.1f}% of the events carried several tokens ({summary.bundled_tokens} tokens came with another one;"
            " their ITL is 0)"
        )
    tokens = summary.output_tokens
    if summary.together and not streams_nothing(records):
        yield f"{100 * summary.together / tokens:.1f}% of the tokens came in the same read as the one before (ITL 0)"
    if any(record.counted_by is CountedBy.EVENTS for record in records if not record.failed):
        yield "the server does not count its tokens: one is assumed for each event with text (--tokenizer counts them)"
    if summary.short_answers:
        yield f"{summary.short_answers} answers ended before the length that was asked for (--ignore-eos)"
    if summary.cached_share > CACHED_MATTERS and not _begin_alike(settings):
        yield (
            f"{100 * summary.cached_share:.0f}% of the prompt tokens were in the server's cache, though no two prompts"
            " begin alike: it had this workload before; another --seed has other prompts"
        )
    yield from _client_remarks(run, summary)


def _client_remarks(run: Run, summary: Summary) -> Iterator[str]:
    late, typical = summary.all.late.p99, summary.all.ttft.p50
    if late is not None and typical is not None and late > LATE_MATTERS * typical:
        yield (
            f"requests left up to {1000 * late:.1f} ms (p99) after they were due: the client, or --concurrency, held"
            " them; TTFT and end to end contain it, 'after send' does not"
        )
    if run.lag:
        lag = percentile(sorted(run.lag), 99)
        if typical is not None and lag > LATE_MATTERS * typical:
            yield f"the client's event loop was late by {1000 * lag:.1f} ms (p99): this machine is too busy"

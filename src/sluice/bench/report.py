"""The table that `sluice bench` prints."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from sluice.bench.metrics import Errors, Latencies, Spread, Summary, errors, parse_goodput, summarize
from sluice.bench.records import Result, Run, served
from sluice.bench.remarks import remarks

HEADINGS = ("mean", "p50", "p90", "p95", "p99", "max")
NAME_WIDTH, NUMBER_WIDTH = 24, 10


def summaries(result: Result) -> list[Summary]:
    """Of each run, by the goodput limits that it was measured with."""
    limits = result.settings.get("run", {}).get("goodput")
    goodput = None if limits is None else parse_goodput(limits)
    return [summarize(run.requests, goodput) for run in result.runs]


def table(result: Result) -> str:
    """Everything there is to say, for a terminal."""
    lines = [title(result), ""]
    for index, (run, summary) in enumerate(zip(result.runs, summaries(result), strict=True), start=1):
        if len(result.runs) > 1:
            lines.append(f"run {index} of {len(result.runs)}")
        lines += [*run_lines(run, summary, result.settings), ""]
    return "\n".join(lines)


def title(result: Result) -> str:
    """Who was measured, and when."""
    target = result.target
    return f"{target['url'] or 'in process'} · {served(target)} · {result.runs[0].started}"


def run_lines(run: Run, summary: Summary, settings: Mapping[str, Any]) -> Iterator[str]:
    yield from totals(summary)
    yield ""
    kinds = summary.by_kind if len(summary.by_kind) > 1 else {}
    for name, found in (("all requests", summary.all), *kinds.items()):
        yield from latency_lines(name, found)
        yield ""
    if summary.windows:
        yield f"while a long prompt was in prefill ({summary.windows} windows, {summary.window_seconds:.2f} s), ms"
        yield line("ITL inside", summary.itl_in_windows)
        yield line("ITL outside", summary.itl_outside)
        yield ""
    failed = errors(run.requests)
    if failed:
        yield from error_lines(failed)
        yield ""
    for remark in remarks(run, summary, settings):
        yield f"note: {remark}"


def totals(summary: Summary) -> Iterator[str]:
    """Throughput and counts."""
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


def latency_lines(name: str, found: Latencies) -> Iterator[str]:
    yield f"{name} ({found.requests}, {found.failed} failed), ms"
    yield " " * NAME_WIDTH + "".join(f"{heading:>{NUMBER_WIDTH}}" for heading in HEADINGS) + f"{'n':>8}"
    for label, values in rows(found):
        yield line(label, values)


def rows(found: Latencies) -> tuple[tuple[str, Spread], ...]:
    """The latencies of a class under their names."""
    return (
        ("TTFT", found.ttft),
        ("TTFT after send", found.ttft_after_send),
        ("TPOT", found.tpot),
        ("ITL", found.itl),
        ("end to end", found.e2e),
        ("end to end after send", found.e2e_after_send),
        ("add request", found.add),
        ("client late", found.late),
    )


def line(label: str, values: Spread) -> str:
    numbers = "".join(f"{text:>{NUMBER_WIDTH}}" for text in figures(values))
    return f"  {label:<{NAME_WIDTH - 2}}{numbers}{values.count:>8}"


def figures(values: Spread) -> tuple[str, ...]:
    """Mean, percentiles and maximum in milliseconds."""
    return tuple(
        milliseconds(value) for value in (values.mean, values.p50, values.p90, values.p95, values.p99, values.max)
    )


def milliseconds(seconds: float | None) -> str:
    if seconds is None:
        return "-"
    number = 1000 * seconds
    return f"{number:.0f}" if abs(number) >= 10_000 else f"{number:.1f}" if abs(number) >= 100 else f"{number:.2f}"


def error_lines(failed: Sequence[Errors]) -> Iterator[str]:
    yield "failed"
    for item in failed:
        yield f"  {item.count} x {item.kind}: {item.message} (waited up to {milliseconds(item.longest_wait)} ms)"

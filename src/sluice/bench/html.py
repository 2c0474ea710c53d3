"""The report as one HTML page that loads nothing: it has no script, and no font or picture from elsewhere."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from sluice.bench.metrics import Summary, e2e, errors, gaps, itls, prefill_windows, ttft
from sluice.bench.pacing import pace_plot
from sluice.bench.plots import cdf, render, scatter
from sluice.bench.records import Record
from sluice.bench.report import HEADINGS, figures, milliseconds, remarks, sections, summaries, title
from sluice.bench.results import BenchResult
from sluice.bench.workload import LONG
from sluice.tracing.run import StepRun


def page(
    result: BenchResult,
    steps: Sequence[StepRun] = (),
    command: str = "bench",
    beside: Mapping[str, Sequence[Record]] | None = None,
) -> str:
    """Return the whole report.

    Args:
        steps: of the engine's trace. If they had an ITL target, the report shows how well they were predicted.
        command: that made the result.
        beside: other runs by name, which the distributions of the first run are drawn with.
    """
    runs: list[dict[str, Any]] = []
    for number, (run, summary) in enumerate(zip(result.runs, summaries(result), strict=True), start=1):
        has_several = len(result.runs) > 1
        prefix = f"run-{number}-" if has_several else ""
        runs.append(
            {
                "prefix": prefix,
                "name": f" of run {number}" if has_several else "",
                "tiles": _tiles(summary),
                "notes": list(remarks(run, summary, result.settings)),
                "sections": list(sections(summary)),
                "errors": errors(run.requests),
                "plots": list(_plots(run.requests, prefix)),
            }
        )
    if beside:
        runs[0]["plots"] = [*_distributions(beside, "beside-"), *_plots(result.runs[0].requests, runs[0]["prefix"])]
    shown = {name: getattr(result, name) for name in ("settings", "target", "versions", "machine")}
    return render(
        "report.html",
        heading=f"sluice {command}: {result.target['model']}",
        introduction=title(result),
        runs=runs,
        predicted=pace_plot(steps),
        settings={name: json.dumps(content, indent=2, default=str) for name, content in shown.items()},
        headings=("", *HEADINGS, "n"),
        figures=figures,
        milliseconds=milliseconds,
    )


def document(heading: str, introduction: str, parts: Iterable[str]) -> str:
    """Return a page of these parts, which are HTML."""
    return render("document.html", heading=heading, introduction=introduction, parts=list(parts))


def _tiles(summary: Summary) -> dict[str, str]:
    tiles = {
        "requests": str(summary.requests),
        "failed": str(summary.failed),
        "seconds": f"{summary.seconds:.2f}",
        "requests/s": f"{summary.requests_per_second:.2f}",
        "output tokens/s": f"{summary.output_per_second:.1f}",
        "input tokens/s": f"{summary.input_per_second:.1f}",
        "ITL p99, ms": milliseconds(summary.all.itl.p99),
        "largest ITL, ms": milliseconds(summary.all.itl.max),
    }
    if summary.good is not None:
        tiles["goodput"] = f"{summary.good} ({summary.good_per_second:.2f}/s)"
    return tiles


def _plots(records: Sequence[Record], prefix: str) -> Iterator[str]:
    """Plot ITL over time, and the distributions of TTFT, ITL and end-to-end times, by class."""
    kinds = sorted({record.kind for record in records}, key=lambda kind: (kind == LONG, kind))
    by_kind = {kind: [record for record in records if record.kind == kind] for kind in kinds}
    windows = prefill_windows(records)
    yield scatter(
        name=f"{prefix}itl-over-time",
        title="Inter-token latency over time",
        description="Each dot is a token, by when it came and how long its stream had waited for it. Tokens that came"
        " together with the one before (ITL 0) are left out."
        + (" Bands: a long prompt was in prefill." if windows else ""),
        series={
            f"{kind} requests": [(gap.end, 1000 * gap.seconds) for record in own for gap in gaps(record)]
            for kind, own in by_kind.items()
        },
        windows=windows,
        x_label="seconds since the start",
        y_label="ITL, ms",
    )
    yield from _distributions({f"{kind} requests": own for kind, own in by_kind.items()}, prefix)


def _distributions(series: Mapping[str, Sequence[Record]], prefix: str) -> Iterator[str]:
    """Plot the distributions of TTFT, ITL and end-to-end times of several series of requests."""
    for name, label, seconds in DISTRIBUTIONS:
        values = {kind: [1000 * value for record in own for value in seconds(record)] for kind, own in series.items()}
        if any(values.values()):
            yield cdf(
                name=f"{prefix}cdf-{name}",
                title=f"{label}: distribution",
                description=_spoken(values),
                series=values,
                x_label=f"{label.lower()}, ms",
            )


def _if_any(metric: Callable[[Record], float | None]) -> Callable[[Record], list[float]]:
    return lambda record: [value for value in (metric(record),) if value is not None]


DISTRIBUTIONS: Sequence[tuple[str, str, Callable[[Record], list[float]]]] = (
    ("ttft", "Time to first token", _if_any(ttft)),
    ("itl", "Inter-token latency", lambda record: itls([record])),
    ("e2e", "End-to-end latency", _if_any(e2e)),
)
"""Names, titles and values of a request in the plots of distributions."""


def _spoken(values: Mapping[str, Sequence[float]]) -> str:
    """Return a plot in words, for readers who cannot see it."""
    parts = []
    for kind, own in values.items():
        if own:
            ordered, name = sorted(own), kind.removesuffix(" requests")
            parts.append(f"{name}: half within {ordered[(len(own) - 1) // 2]:.1f} ms, all within {ordered[-1]:.1f} ms")
    return "Share of values up to each value. " + "; ".join(parts) + "."

"""The report as one HTML page that loads nothing: no script, no font, no picture from elsewhere."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from html import escape
from typing import Any

from sluice.bench.metrics import Latencies, Spread, Summary, e2e, errors, gaps, prefill_windows, ttft
from sluice.bench.plots import Point, cdf, scatter
from sluice.bench.records import Record, Result, Run
from sluice.bench.remarks import remarks
from sluice.bench.report import HEADINGS, figures, milliseconds, rows, summaries, title

STYLE = """
:root { color-scheme: light dark; --text: #1c2430; --faint: #5a6675; --back: #fff; --panel: #f5f7fa; --rule: #d7dde5;
  --s0: #1d5fd0; --s1: #b34700; --s2: #0b7a52; --s3: #8a2f9c; --window: #f0b429; }
@media (prefers-color-scheme: dark) { :root { --text: #e6ebf2; --faint: #a3afbf; --back: #12171f; --panel: #1b222d;
  --rule: #36414f; --s0: #7fb0ff; --s1: #ff9f5a; --s2: #5fd3a5; --s3: #d79be6; --window: #8a6a1a; } }
* { box-sizing: border-box; }
body { margin: 0 auto; padding: 2rem 1rem 4rem; max-width: 62rem; background: var(--back); color: var(--text);
  font: 16px/1.5 system-ui, sans-serif; }
h1 { font-size: 1.6rem; margin: 0; } h2 { font-size: 1.25rem; margin: 2.5rem 0 .5rem; }
h3 { font-size: 1rem; margin: 0; } p { margin: .2rem 0; }
.sub, figcaption p, dt { color: var(--faint); }
.tiles { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(13rem, 45%), 1fr)); gap: .75rem;
  margin: 1rem 0; }
.tiles div { background: var(--panel); border-radius: .5rem; padding: .75rem 1rem; }
.tiles dt { font-size: .9rem; white-space: nowrap; }
.tiles dd { margin: 0; font-size: 1.35rem; font-weight: 600; font-variant-numeric: tabular-nums; }
.scroll { overflow-x: auto; }
table { border-collapse: collapse; width: 100%; font-variant-numeric: tabular-nums; margin: .5rem 0 1.5rem; }
caption { text-align: left; font-weight: 600; padding: .25rem 0; }
th, td { padding: .3rem .6rem; text-align: right; border-bottom: 1px solid var(--rule); }
th[scope=row] { text-align: left; font-weight: 400; white-space: nowrap; position: sticky; left: 0;
  background: var(--back); }
td.text { text-align: left; overflow-wrap: anywhere; min-width: 14rem; }
thead th { color: var(--faint); font-weight: 500; }
figure { margin: 1.5rem 0; } svg { overflow: visible; width: 100%; height: auto; display: block; }
.legend { list-style: none; display: flex; flex-wrap: wrap;
  gap: .2rem 1.2rem; margin: .3rem 0; padding: 0; font-size: .9rem; }
.key { display: inline-block; width: .8rem; height: .8rem; border-radius: 50%; margin-right: .4rem; }
.key.series-1 { border-radius: 0; }
.key.series-0 { background: var(--s0); } .key.series-1 { background: var(--s1); }
.key.series-2 { background: var(--s2); } .key.series-3 { background: var(--s3); }
path.series-0 { stroke: var(--s0); } path.series-1 { stroke: var(--s1); stroke-dasharray: none; }
path.series-2 { stroke: var(--s2); } path.series-3 { stroke: var(--s3); }
.dots { fill: none; stroke-width: 3.2; stroke-linecap: round; stroke-opacity: .55; }
.dots.series-1 { stroke-linecap: square; }
.line { fill: none; stroke-width: 2; }
.line.series-1 { stroke-dasharray: 7 3; } .line.series-2 { stroke-dasharray: 2 3; }
.line.series-3 { stroke-dasharray: 9 3 2 3; }
.window { fill: var(--window); fill-opacity: .28; }
.grid { stroke: var(--rule); stroke-width: 1; fill: none; }
.tick, .label { fill: var(--faint); font-size: 12px; font-family: system-ui, sans-serif; }
@media (max-width: 40rem) { .tick, .label { font-size: 21px; } .dots { stroke-width: 5; } .line { stroke-width: 3.5; }
  table { font-size: .85rem; } th, td { padding: .3rem; } }
.note { border-left: 4px solid var(--window); background: var(--panel); padding: .5rem .9rem; margin: .5rem 0; }
pre { background: var(--panel); padding: 1rem; border-radius: .5rem; overflow-x: auto; font-size: .85rem; }
"""


def page(result: Result) -> str:
    """The whole page."""
    parts: list[str] = []
    for index, (run, summary) in enumerate(zip(result.runs, summaries(result), strict=True), start=1):
        notes = remarks(run, summary, result.settings)
        parts += _run(run, summary, notes, index, len(result.runs))
    parts += _settings(result)
    return document(f"sluice bench: {result.target['model']}", title(result), parts)


def document(heading: str, introduction: str, parts: Iterable[str]) -> str:
    """A page around its parts."""
    return "\n".join(
        [
            "<!doctype html>",
            f'<html lang="en"><head><meta charset="utf-8"><title>{escape(heading)}</title>',
            '<meta name="viewport" content="width=device-width, initial-scale=1">',
            f"<style>{STYLE}</style></head><body>",
            f'<header><h1>{escape(heading)}</h1><p class="sub">{escape(introduction)}</p></header><main>',
            *parts,
            "</main></body></html>",
            "",
        ]
    )


def _run(run: Run, summary: Summary, notes: Iterable[str], index: int, count: int) -> Iterator[str]:
    prefix = f"run-{index}-" if count > 1 else ""
    name = f" of run {index}" if count > 1 else ""
    yield f'<section id="{prefix}summary" aria-labelledby="{prefix}summary-heading">'
    yield f'<h2 id="{prefix}summary-heading">Summary{name}</h2>'
    yield from _tiles(summary)
    for note in notes:
        yield f'<p class="note" role="note">{escape(note)}</p>'
    yield "</section>"
    yield f'<section aria-labelledby="{prefix}latencies-heading">'
    yield f'<h2 id="{prefix}latencies-heading">Latencies{name}, in ms</h2>'
    yield from _tables(summary, prefix)
    yield "</section>"
    yield from _errors(run, prefix)
    yield f'<section aria-labelledby="{prefix}plots-heading"><h2 id="{prefix}plots-heading">Plots{name}</h2>'
    yield from plots(run.requests, prefix)
    yield "</section>"


def _tiles(summary: Summary) -> Iterator[str]:
    tiles = [
        ("requests", str(summary.requests)),
        ("failed", str(summary.failed)),
        ("seconds", f"{summary.seconds:.2f}"),
        ("requests/s", f"{summary.requests_per_second:.2f}"),
        ("output tokens/s", f"{summary.output_per_second:.1f}"),
        ("input tokens/s", f"{summary.input_per_second:.1f}"),
        ("ITL p99, ms", milliseconds(summary.all.itl.p99)),
        ("largest ITL, ms", milliseconds(summary.all.itl.max)),
    ]
    if summary.good is not None:
        tiles.append(("goodput", f"{summary.good} ({summary.good_per_second:.2f}/s)"))
    yield '<dl class="tiles">'
    for name, value in tiles:
        yield f"<div><dt>{escape(name)}</dt><dd>{escape(value)}</dd></div>"
    yield "</dl>"


def _tables(summary: Summary, prefix: str) -> Iterator[str]:
    kinds = summary.by_kind if len(summary.by_kind) > 1 else {}
    for name, found in (("all requests", summary.all), *kinds.items()):
        yield _table(f"{prefix}latencies-{name.split()[0]}", _caption(name, found), rows(found))
    if summary.windows:
        caption = f"while a long prompt was in prefill: {summary.windows} windows, {summary.window_seconds:.2f} s"
        inside = (("ITL inside", summary.itl_in_windows), ("ITL outside", summary.itl_outside))
        yield _table(f"{prefix}latencies-windows", caption, inside)


def _caption(name: str, found: Latencies) -> str:
    return f"{name}: {found.requests}, {found.failed} failed"


def _table(name: str, caption: str, shown: Sequence[tuple[str, Spread]]) -> str:
    head = "".join(f'<th scope="col">{heading}</th>' for heading in ("", *HEADINGS, "n"))
    body = "".join(
        f'<tr><th scope="row">{escape(label)}</th>'
        + "".join(f"<td>{figure}</td>" for figure in (*figures(values), values.count))
        + "</tr>"
        for label, values in shown
    )
    return (
        f'<div {_scroll(caption)}><table id="{escape(name)}"><caption>{escape(caption)}</caption>'
        f"<thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>"
    )


def _scroll(label: str) -> str:
    """What is wider than the page scrolls by itself, by keyboard too."""
    return f'class="scroll" role="region" tabindex="0" aria-label="{escape(label)}"'


def _errors(run: Run, prefix: str) -> Iterator[str]:
    failed = errors(run.requests)
    if not failed:
        return
    yield f'<section id="{prefix}errors" aria-labelledby="{prefix}errors-heading">'
    yield f'<h2 id="{prefix}errors-heading">Failed requests</h2><div {_scroll("failed requests")}><table>'
    yield '<thead><tr><th scope="col">kind</th><th scope="col">requests</th><th scope="col">waited up to, ms</th>'
    yield '<th scope="col">the first said</th></tr></thead><tbody>'
    for item in failed:
        yield (
            f'<tr><th scope="row">{escape(item.kind)}</th><td>{item.count}</td>'
            f'<td>{milliseconds(item.longest_wait)}</td><td class="text">{escape(item.message)}</td></tr>'
        )
    yield "</tbody></table></div></section>"


def plots(records: Sequence[Record], prefix: str = "") -> Iterator[str]:
    """ITL over time, and how TTFT, ITL and end-to-end times are distributed, by class."""
    kinds = sorted({record.kind for record in records}, key=lambda kind: (kind == "long", kind))
    by_kind = {kind: [record for record in records if record.kind == kind] for kind in kinds}
    windows = prefill_windows(records)
    yield scatter(
        name=f"{prefix}itl-over-time",
        title="Inter-token latency over time",
        description="Each dot is a token, by when it came and how long its stream had waited for it. Tokens that came"
        " together with the one before (ITL 0) are left out."
        + (" Bands: a long prompt was in prefill." if windows else ""),
        series={f"{kind} requests": _token_points(own) for kind, own in by_kind.items()},
        windows=windows,
        x_label="seconds since the start",
        y_label="ITL, ms",
    )
    for name, label, values in (
        ("ttft", "Time to first token", {kind: _values(own, "ttft") for kind, own in by_kind.items()}),
        ("itl", "Inter-token latency", {kind: _values(own, "itl") for kind, own in by_kind.items()}),
        ("e2e", "End-to-end latency", {kind: _values(own, "e2e") for kind, own in by_kind.items()}),
    ):
        if any(values.values()):
            yield cdf(
                name=f"{prefix}cdf-{name}",
                title=f"{label}: distribution",
                description=_spoken(values),
                series={f"{kind} requests": own for kind, own in values.items()},
                x_label=f"{label.lower()}, ms",
            )


def _token_points(records: Sequence[Record]) -> list[Point]:
    return [(gap.end, 1000 * gap.seconds) for record in records for gap in gaps(record)]


def _values(records: Sequence[Record], metric: str) -> list[float]:
    if metric == "itl":
        return [1000 * gap.seconds for record in records for gap in gaps(record)]
    measure = ttft if metric == "ttft" else e2e
    return [1000 * value for value in map(measure, records) if value is not None]


def _spoken(values: Mapping[str, Sequence[float]]) -> str:
    """A plot in words, for those who cannot see it."""
    said = []
    for kind, own in values.items():
        if own:
            ordered = sorted(own)
            said.append(f"{kind}: half within {ordered[(len(own) - 1) // 2]:.1f} ms, all within {ordered[-1]:.1f} ms")
    return "Share of values up to each value. " + "; ".join(said) + "."


def _settings(result: Result) -> Iterator[str]:
    shown: dict[str, Any] = {
        "settings": result.settings,
        "target": result.target,
        "versions": result.versions,
        "machine": result.machine,
    }
    yield '<section id="settings" aria-labelledby="settings-heading"><h2 id="settings-heading">Settings</h2>'
    for name, content in shown.items():
        text = json.dumps(content, indent=2, default=str)
        opened = " open" if name in ("versions", "machine") else ""
        yield f"<details{opened}><summary>{name}</summary><pre>{escape(text)}</pre></details>"
    yield "</section>"

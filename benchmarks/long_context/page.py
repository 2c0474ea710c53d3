"""A page with measurements by the length of a context: plots on logarithmic axes and a table. It loads nothing."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from html import escape

from sluice.bench.html import STYLE
from sluice.bench.plots import BOTTOM, HEIGHT, LEFT, RIGHT, TOP, WIDTH, Axis, legend, x_tick, x_title, y_ticks

Figures = Mapping[str, Mapping[str, float]]
"""By the length's name, and what was measured."""
MARGIN = 1.3


@dataclass(frozen=True, slots=True)
class Plot:
    """Some of the measurements, in one unit, over all lengths."""

    name: str
    title: str
    unit: str
    shown: Sequence[str]


def page(title: str, introduction: str, figures: Figures, plots: Sequence[Plot], record: object) -> str:
    """
    Args:
        record: what else is to be kept: settings, versions, machine.
    """
    parts = [
        "<!doctype html>",
        f'<html lang="en"><head><meta charset="utf-8"><title>{escape(title)}</title>',
        '<meta name="viewport" content="width=device-width, initial-scale=1">',
        f"<style>{STYLE}</style></head><body>",
        f'<header><h1>{escape(title)}</h1><p class="sub">{escape(introduction)}</p></header><main>',
        *("\n".join(_plot(plot, figures)) for plot in plots),
        _table(figures),
        f"<details><summary>settings</summary><pre>{escape(json.dumps(record, indent=2, default=str))}</pre></details>",
        "</main></body></html>",
        "",
    ]
    return "\n".join(parts)


def number(value: float) -> str:
    """With as many digits as say something."""
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def _table(figures: Figures) -> str:
    names = list(next(iter(figures.values())))
    head = "".join(f'<th scope="col">{escape(name)}</th>' for name in ("tokens", *names))
    rows = "".join(
        f'<tr><th scope="row">{escape(label)}</th>{"".join(f"<td>{number(own[name])}</td>" for name in names)}</tr>'
        for label, own in figures.items()
    )
    return f'<div class="scroll"><table><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table></div>'


def _plot(plot: Plot, figures: Figures) -> Iterator[str]:
    values = [own[name] for own in figures.values() for name in plot.shown if own[name] > 0]
    yield f'<figure id="{escape(plot.name)}"><figcaption><h3>{escape(plot.title)}</h3></figcaption>'
    if values:
        y = Axis(min(values) / MARGIN, max(values) * MARGIN, HEIGHT - BOTTOM, TOP, log=True)
        places = {
            label: LEFT + (WIDTH - LEFT - RIGHT) * (index + 0.5) / len(figures) for index, label in enumerate(figures)
        }
        yield legend(plot.shown)
        yield f'<svg role="img" viewBox="0 0 {WIDTH} {HEIGHT}" aria-label="{escape(_spoken(plot, figures))}">'
        yield from y_ticks(y, plot.unit)
        yield from (x_tick(place, label) for label, place in places.items())
        yield x_title("tokens of the context")
        for index, name in enumerate(plot.shown):
            points = [(places[label], y.place(own[name])) for label, own in figures.items() if own[name] > 0]
            yield _line(index, points)
        yield "</svg>"
    yield "</figure>"


def _line(index: int, points: Sequence[tuple[float, float]]) -> str:
    if not points:
        return ""
    path = "L".join(f"{x:.1f} {top:.1f}" for x, top in points)
    dots = "".join(f"M{x:.1f} {top:.1f}h0" for x, top in points)
    return f'<path class="line series-{index}" d="M{path}"/><path class="dots series-{index}" d="{dots}"/>'


def _spoken(plot: Plot, figures: Figures) -> str:
    """The plot in words."""
    said = (
        f"{label}: " + ", ".join(f"{name} {number(own[name])} {plot.unit}" for name in plot.shown)
        for label, own in figures.items()
    )
    return f"{plot.title}. " + "; ".join(said)

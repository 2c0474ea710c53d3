"""A page with numbers of several configurations side by side: one plot each, one table. It loads nothing."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape

from sluice.bench.html import STYLE
from sluice.bench.plots import BOTTOM, HEIGHT, LEFT, RIGHT, TOP, WIDTH, Axis, legend, x_tick, x_title, y_ticks
from sluice.bench.report import milliseconds

Figures = Mapping[str, Mapping[str, float | None]]
"""Seconds, by configuration and name."""
SERIES = 4
"""Colours of the style."""
LOG_MARGIN = 1.3


@dataclass(frozen=True, slots=True)
class Plot:
    """Some of the numbers over all configurations."""

    name: str
    title: str
    shown: Sequence[str]
    x_label: str


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
        *(_plot(plot, figures) for plot in plots),
        _table(figures),
        f"<details><summary>settings</summary><pre>{escape(json.dumps(record, indent=2, default=str))}</pre></details>",
        "</main></body></html>",
        "",
    ]
    return "\n".join(parts)


def _table(figures: Figures) -> str:
    names = list(next(iter(figures.values())))
    head = "".join(f'<th scope="col">{escape(name)}</th>' for name in ("ms", *names))
    rows = "".join(
        f'<tr><th scope="row">{escape(label)}</th>'
        + "".join(f"<td>{milliseconds(own[name])}</td>" for name in names)
        + "</tr>"
        for label, own in figures.items()
    )
    return (
        '<div class="scroll"><table><caption>Medians over the rounds</caption>'
        f"<thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table></div>"
    )


def _plot(plot: Plot, figures: Figures) -> str:
    assert len(plot.shown) <= SERIES, f"{len(plot.shown)} series, the style has {SERIES}"
    labels = list(figures)
    values = [1000 * value for own in figures.values() for name in plot.shown if (value := own[name])]
    if not values:
        return f"<p>{escape(plot.title)}: nothing to show.</p>"
    y = Axis(min(values) / LOG_MARGIN, max(values) * LOG_MARGIN, HEIGHT - BOTTOM, TOP, log=True)
    places = {label: LEFT + (WIDTH - LEFT - RIGHT) * (index + 0.5) / len(labels) for index, label in enumerate(labels)}
    return "\n".join(
        [
            f'<figure id="{escape(plot.name)}"><figcaption><h3>{escape(plot.title)}</h3></figcaption>',
            legend(plot.shown),
            f'<svg role="img" viewBox="0 0 {WIDTH} {HEIGHT}" aria-label="{escape(_spoken(plot, figures))}">',
            *y_ticks(y, "ms"),
            *(x_tick(place, label) for label, place in places.items()),
            x_title(plot.x_label),
            *(_line(index, name, figures, places, y) for index, name in enumerate(plot.shown)),
            "</svg></figure>",
        ]
    )


def _line(index: int, name: str, figures: Figures, places: Mapping[str, float], y: Axis) -> str:
    points = [(places[label], y.place(1000 * value)) for label, own in figures.items() if (value := own[name])]
    if not points:
        return ""
    path = "L".join(f"{x:.1f} {top:.1f}" for x, top in points)
    dots = "".join(f"M{x:.1f} {top:.1f}h0" for x, top in points)
    return f'<path class="line series-{index}" d="M{path}"/><path class="dots series-{index}" d="{dots}"/>'


def _spoken(plot: Plot, figures: Figures) -> str:
    """The plot in words."""
    said = [f"{label}: " + ", ".join(f"{name} {milliseconds(own[name])} ms" for name in plot.shown)
            for label, own in figures.items()]  # fmt: skip
    return f"{plot.title}. " + "; ".join(said)

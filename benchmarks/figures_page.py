"""Makes a page with the figures of several configurations: plots on logarithmic axes and a table. It loads nothing."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape

from sluice.bench.html import document
from sluice.bench.plots import BOTTOM, HEIGHT, LEFT, RIGHT, TOP, WIDTH, Axis, line
from sluice.bench.plots import plot as draw

Figures = Mapping[str, Mapping[str, float | None]]
"""Figures by configuration and name; None where there is none."""
SERIES = 4
"""Number of colours of the style."""
LOG_MARGIN = 1.3


@dataclass(frozen=True, slots=True)
class Plot:
    """A plot of some of the figures, in one unit, over all configurations."""

    name: str
    title: str
    unit: str
    shown: Sequence[str]
    x_label: str


def page(
    title: str,
    introduction: str,
    figures: Figures,
    plots: Sequence[Plot],
    record: object,
    *,
    of: str,
    caption: str = "",
) -> str:
    """Return the page.

    Args:
        record: what else the page keeps: settings, versions, machine.
        of: the heading of the configurations' names.
        caption: the table's caption.
    """
    settings = escape(json.dumps(record, indent=2, default=str))
    return document(
        title,
        introduction,
        [
            *(_plot(plot, figures) for plot in plots),
            _table(figures, of, caption),
            f"<details><summary>settings</summary><pre>{settings}</pre></details>",
        ],
    )


def in_milliseconds(figures: Figures) -> Figures:
    """Return figures that are given in seconds in milliseconds."""
    return {
        label: {name: None if value is None else 1000 * value for name, value in own.items()}
        for label, own in figures.items()
    }


def number(value: float | None) -> str:
    """Return a number with three digits, or all of a large one."""
    if value is None:
        return "-"
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def _table(figures: Figures, of: str, caption: str) -> str:
    names = list(next(iter(figures.values())))
    head = "".join(f'<th scope="col">{escape(name)}</th>' for name in (of, *names))
    rows = "".join(
        f'<tr><th scope="row">{escape(label)}</th>{"".join(f"<td>{number(own[name])}</td>" for name in names)}</tr>'
        for label, own in figures.items()
    )
    above = f"<caption>{escape(caption)}</caption>" if caption else ""
    return f'<div class="scroll"><table>{above}<thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table></div>'


def _plot(plot: Plot, figures: Figures) -> str:
    assert len(plot.shown) <= SERIES, f"{len(plot.shown)} series, the style has {SERIES}"
    values = [value for own in figures.values() for name in plot.shown if (value := own[name])]
    if not values:
        return f"<p>{escape(plot.title)}: nothing to show.</p>"
    y = Axis(min(values) / LOG_MARGIN, max(values) * LOG_MARGIN, HEIGHT - BOTTOM, TOP, log=True)
    places = {label: LEFT + (WIDTH - LEFT - RIGHT) * (at + 0.5) / len(figures) for at, label in enumerate(figures)}
    lines = [
        line(index, [(places[label], y.place(value)) for label, own in figures.items() if (value := own[name])])
        for index, name in enumerate(plot.shown)
    ]
    return draw(
        name=plot.name,
        title=plot.title,
        description="",
        spoken=_spoken(plot, figures),
        series=plot.shown,
        x_ticks=[(place, label) for label, place in places.items()],
        has_x_grid=False,
        x_label=plot.x_label,
        y_ticks=y.labels(),
        y_label=plot.unit,
        marks=lines,
    )


def _spoken(plot: Plot, figures: Figures) -> str:
    """Return the plot in words."""
    parts = (
        f"{label}: " + ", ".join(f"{name} {number(own[name])} {plot.unit}" for name in plot.shown)
        for label, own in figures.items()
    )
    return f"{plot.title}. " + "; ".join(parts)

"""A page with figures of several configurations: plots on logarithmic axes and a table. It loads nothing."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from html import escape

from sluice.bench.html import document
from sluice.bench.plots import BOTTOM, HEIGHT, LEFT, RIGHT, TOP, WIDTH, Axis, legend, line, x_tick, x_title, y_ticks

Figures = Mapping[str, Mapping[str, float | None]]
"""By configuration and name; None: there is none."""
SERIES = 4
"""Colours of the style."""
LOG_MARGIN = 1.3


@dataclass(frozen=True, slots=True)
class Plot:
    """Some of the figures, in one unit, over all configurations."""

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
    """
    Args:
        record: what else is to be kept: settings, versions, machine.
        of: what the names of configurations are.
        caption: of the table.
    """
    settings = escape(json.dumps(record, indent=2, default=str))
    return document(
        title,
        introduction,
        [
            *("\n".join(_plot(plot, figures)) for plot in plots),
            _table(figures, of, caption),
            f"<details><summary>settings</summary><pre>{settings}</pre></details>",
        ],
    )


def in_milliseconds(figures: Figures) -> Figures:
    """From seconds."""
    return {
        label: {name: None if value is None else 1000 * value for name, value in own.items()}
        for label, own in figures.items()
    }


def number(value: float | None) -> str:
    """With as many digits as say something."""
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


def _plot(plot: Plot, figures: Figures) -> Iterator[str]:
    assert len(plot.shown) <= SERIES, f"{len(plot.shown)} series, the style has {SERIES}"
    values = [value for own in figures.values() for name in plot.shown if (value := own[name])]
    if not values:
        yield f"<p>{escape(plot.title)}: nothing to show.</p>"
        return
    y = Axis(min(values) / LOG_MARGIN, max(values) * LOG_MARGIN, HEIGHT - BOTTOM, TOP, log=True)
    places = {label: LEFT + (WIDTH - LEFT - RIGHT) * (at + 0.5) / len(figures) for at, label in enumerate(figures)}
    yield f'<figure id="{escape(plot.name)}"><figcaption><h3>{escape(plot.title)}</h3></figcaption>'
    yield legend(plot.shown)
    yield f'<svg role="img" viewBox="0 0 {WIDTH} {HEIGHT}" aria-label="{escape(_spoken(plot, figures))}">'
    yield from y_ticks(y, plot.unit)
    yield from (x_tick(place, label) for label, place in places.items())
    yield x_title(plot.x_label)
    for index, name in enumerate(plot.shown):
        yield line(index, [(places[label], y.place(value)) for label, own in figures.items() if (value := own[name])])
    yield "</svg></figure>"


def _spoken(plot: Plot, figures: Figures) -> str:
    """The plot in words."""
    said = (
        f"{label}: " + ", ".join(f"{name} {number(own[name])} {plot.unit}" for name in plot.shown)
        for label, own in figures.items()
    )
    return f"{plot.title}. " + "; ".join(said)

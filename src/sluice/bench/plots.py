"""Draws plots as SVG without a library. They load nothing, and a screen reader can read their text.

Colours come from classes that the page's style defines for light and dark.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined

PAGES = Path(__file__).parent / "pages"
WIDTH, HEIGHT = 760, 300
LEFT, RIGHT, TOP, BOTTOM = 72, 16, 34, 62
"""Room around the plot for text that a narrow page shows larger."""
MOST_TICKS = 12
LOG_FROM = 20.0
"""Ratio of the largest value to the median from which the axis is logarithmic: else a stall flattens all the rest."""
CDF_POINTS = 300

Point = tuple[float, float]


@dataclass(frozen=True, slots=True)
class Axis:
    """Maps values to pixels, from `low` at `first` to `high` at `last`."""

    low: float
    high: float
    first: float
    last: float
    log: bool = False

    def place(self, value: float) -> float:
        if self.log:
            share = math.log(max(value, self.low) / self.low) / math.log(self.high / self.low)
        else:
            share = (value - self.low) / (self.high - self.low)
        return self.first + min(max(share, 0.0), 1.0) * (self.last - self.first)

    def ticks(self) -> list[float]:
        """Return round values along the axis."""
        if self.log:
            powers = range(math.floor(math.log10(self.low)), math.ceil(math.log10(self.high)) + 1)
            found = [factor * 10.0**power for power in powers for factor in (1, 2, 5)]
        else:
            step = _round_step((self.high - self.low) / 6)
            found = [index * step for index in range(math.ceil(self.low / step), math.floor(self.high / step) + 1)]
        return [tick for tick in found if self.low <= tick <= self.high * 1.000001]

    def labels(self) -> list[tuple[float, str]]:
        """Return places and texts of `MOST_TICKS` ticks at most: a logarithmic axis over many decades has more."""
        ticks = self.ticks()
        step = math.ceil(len(ticks) / MOST_TICKS) or 1
        return [(self.place(tick), f"{tick:g}") for tick in ticks[::step]]


def _round_step(rough: float) -> float:
    power = 10.0 ** math.floor(math.log10(rough))
    return next(factor * power for factor in (1, 2, 5, 10) if factor * power >= rough * 0.999999)


def value_axis(values: Sequence[float], first: float, last: float) -> Axis:
    """Return an axis over positive values, logarithmic if they differ much."""
    positive = sorted(value for value in values if value > 0)
    if not positive:
        return Axis(0.0, 1.0, first, last)
    median, largest = positive[len(positive) // 2], positive[-1]
    if largest > LOG_FROM * median:
        low = positive[len(positive) // 100]
        return Axis(low if low < largest else largest / 10, largest * 1.1, first, last, log=True)
    return Axis(0.0, largest * 1.05, first, last)


def scatter(
    *, series: Mapping[str, Sequence[Point]], windows: Sequence[tuple[float, float]], y_label: str, **words: str
) -> str:
    """Plot points over time, with windows as bands behind them. Points that would cover each other are drawn once.

    Args:
        words: `name`, `title`, `description` and `x_label` of the plot.
    """
    points = [point for own in series.values() for point in own]
    edges = [x for x, _ in points] + [edge for window in windows for edge in window]
    x = Axis(0.0, max([*edges, 1e-3]), LEFT, WIDTH - RIGHT)
    y = value_axis([value for _, value in points], HEIGHT - BOTTOM, TOP)
    marks = []
    for start, end in windows:
        left, right = x.place(start), x.place(end)
        marks.append(
            f'<rect class="window" x="{left:.1f}" y="{TOP}" width="{max(1.0, right - left):.1f}"'
            f' height="{HEIGHT - BOTTOM - TOP}"><title>a long prompt in prefill, {start:.2f} s to {end:.2f} s'
            f"</title></rect>"
        )
    for index, own in enumerate(series.values()):
        places = dict.fromkeys((round(x.place(at), 1), round(y.place(value), 1)) for at, value in own if value > 0)
        path = "".join(f"M{left:g} {top:g}h0" for left, top in places)
        marks.append(f'<path class="dots series-{index}" d="{path}"/>')
    return plot(series=list(series), x_ticks=x.labels(), y_ticks=y.labels(), y_label=y_label, marks=marks, **words)


def cdf(*, series: Mapping[str, Sequence[float]], **words: str) -> str:
    """Plot the share of values up to each value.

    Args:
        words: `name`, `title`, `description` and `x_label` of the plot.
    """
    x = value_axis([value for own in series.values() for value in own], LEFT, WIDTH - RIGHT)
    y = Axis(0.0, 1.0, HEIGHT - BOTTOM, TOP)
    marks = []
    for index, own in enumerate(series.values()):
        steps = "".join(f"H{x.place(value):.1f}V{y.place(share):.1f}" for value, share in cdf_points(own))
        if own:
            first = f"M{x.place(min(own)):.1f} {y.place(0):.1f}"
            marks.append(f'<path class="line series-{index}" d="{first}{steps}"/>')
    return plot(series=list(series), x_ticks=x.labels(), y_ticks=y.labels(), y_label="share", marks=marks, **words)


def cdf_points(values: Sequence[float]) -> list[Point]:
    """Return pairs of a value and the share of values up to it: `CDF_POINTS` at most, the largest always."""
    ordered = sorted(values)
    count = len(ordered)
    ranks: Sequence[int] = range(1, count + 1)
    if count > CDF_POINTS:
        ranks = sorted({math.ceil(count * index / CDF_POINTS) for index in range(1, CDF_POINTS + 1)})
    return [(ordered[rank - 1], rank / count) for rank in ranks]


def plot(**content: Any) -> str:
    """Return a plot as SVG in a figure.

    Args:
        content: `name`, `title`, `description`, `x_label`, `y_label`; `series`, the names of the legend; `x_ticks` and
            `y_ticks`, pairs of a place and a text; `marks`, SVG elements; optionally `spoken`, a longer description
            for screen readers, and `has_x_grid`.
    """
    edges = {"left": LEFT, "right": WIDTH - RIGHT, "top": TOP, "bottom": HEIGHT - BOTTOM}
    return render("plot.html", **({"spoken": "", "has_x_grid": True} | content | edges), width=WIDTH, height=HEIGHT)


def line(index: int, points: Sequence[Point]) -> str:
    """Return the points of a series, joined; empty without points."""
    if not points:
        return ""
    path = "L".join(f"{x:.1f} {y:.1f}" for x, y in points)
    dots = "".join(f"M{x:.1f} {y:.1f}h0" for x, y in points)
    return f'<path class="line series-{index}" d="M{path}"/><path class="dots series-{index}" d="{dots}"/>'


def render(template: str, **content: Any) -> str:
    """Fill in a template of `pages`."""
    environment = Environment(
        loader=FileSystemLoader(PAGES),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    return environment.get_template(template).render(content)

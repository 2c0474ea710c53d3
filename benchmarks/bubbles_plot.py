"""Draws the shares of a pipeline's time in which its stages wait, as bars."""

from __future__ import annotations

from collections.abc import Mapping
from html import escape

WIDTH, HEIGHT, LEFT, TOP, BOTTOM = 760, 340, 56, 64, 48
BAR, GAP = 40, 6
COLOURS = ("#9aa5b1", "#c2703d", "#4f86c6", "#2f9e6e")
STYLE = (
    '<style>text { font: 14px "DejaVu Sans", Helvetica, Arial, sans-serif; fill: #24313d }'
    " .page { fill: #ffffff } line { stroke: #d5dbe1 }"
    " @media (prefers-color-scheme: dark) { text { fill: #e6ebf0 } .page { fill: #14191f } line { stroke: #3a4653 } }"
    "</style>"
)

Shares = Mapping[str, Mapping[str, float]]
"""Share of the time, from 0 to 1, by number of stages and by way of cutting prompts."""


def bubbles_plot(shares: Shares, title: str) -> str:
    """Return an SVG: a group of bars for each number of stages, and a bar for each way of cutting prompts."""
    ways = list(next(iter(shares.values())))
    top = max(value for each in shares.values() for value in each.values()) * 1.1
    bottom = HEIGHT - BOTTOM
    height = bottom - TOP
    parts = [STYLE, f'<rect class="page" width="{WIDTH}" height="{HEIGHT}"/>', text(LEFT, 22, title, anchor="start")]
    x = float(LEFT)
    for colour, way in zip(COLOURS, ways, strict=False):
        parts += [f'<rect x="{x}" y="36" width="12" height="12" fill="{colour}"/>', text(x + 17, 47, way, "start")]
        x += 30 + 7.6 * len(way)
    for percent in range(0, int(100 * top) + 1, 5):
        y = bottom - percent / 100 / top * height
        parts += [f'<line x1="{LEFT}" y1="{y:.1f}" x2="{WIDTH - 16}" y2="{y:.1f}"/>']
        parts += [text(LEFT - 8, y + 5, f"{percent}%", "end")]
    group = len(ways) * (BAR + GAP)
    step = (WIDTH - LEFT - 16) / len(shares)
    for number, (stages, found) in enumerate(shares.items()):
        left = LEFT + number * step + (step - group) / 2
        for index, way in enumerate(ways):
            length = found[way] / top * height
            at = left + index * (BAR + GAP)
            rect = f'x="{at:.1f}" y="{bottom - length:.1f}" width="{BAR}" height="{length:.1f}"'
            parts.append(f'<rect {rect} fill="{COLOURS[index]}"/>')
            parts.append(text(at + BAR / 2, bottom - length - 5, f"{100 * found[way]:.1f}"))
        parts.append(text(left + group / 2, bottom + 24, f"{stages} stages"))
    box = f'viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{escape(title)}"'
    return f'<svg xmlns="http://www.w3.org/2000/svg" {box}>\n' + "\n".join(parts) + "\n</svg>\n"


def text(x: float, y: float, words: str, anchor: str = "middle") -> str:
    """Return a line of text."""
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape(words)}</text>'

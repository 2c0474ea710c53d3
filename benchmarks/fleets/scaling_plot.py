"""Draws how many replicas a fleet has before, during and after a burst, and below how many requests run and wait."""

from __future__ import annotations

import math
from collections.abc import Sequence
from html import escape

from benchmarks.bubbles_plot import STYLE, text

WIDTH, LEFT, RIGHT = 760, 56, 16
REPLICAS, REQUESTS = (64, 190), (230, 400)
"""Where the two parts begin and end, from above."""
HEIGHT = 440
TICK_SECONDS, TICK_REQUESTS = 20, 10
BURST, GREEN, ORANGE, BLUE = "#9aa5b1", "#2f9e6e", "#c2703d", "#4f86c6"
TITLE = "A fleet of one to three replicas under a burst"

Points = Sequence[tuple[float, float]]
"""Seconds, and a value from then on."""


def scaling_plot(seconds: Sequence[dict[str, float]], burst: Sequence[float]) -> str:
    """Return an SVG.

    Args:
        seconds: what the metrics said each second: `at`, `replicas`, `running` and `waiting`.
        burst: its beginning and its end.
    """
    last = seconds[-1]["at"]
    most_replicas = max(each["replicas"] for each in seconds)
    highest = max(each[name] for each in seconds for name in ("running", "waiting"))
    most_requests = TICK_REQUESTS * max(1, math.ceil(highest / TICK_REQUESTS))
    start, end = (across(at, last) for at in burst)
    shade = f'y="{REPLICAS[0]}" width="{end - start:.1f}" height="{REQUESTS[1] - REPLICAS[0]}"'
    parts = [
        STYLE,
        f'<rect class="page" width="{WIDTH}" height="{HEIGHT}"/>',
        text(LEFT, 22, TITLE, anchor="start"),
        f'<rect x="{start:.1f}" {shade} fill="{BURST}" opacity="0.25"/>',
        *legend([("replicas", GREEN), ("requests that run", BLUE), ("requests that wait", ORANGE), ("burst", BURST)]),
        *grid(REPLICAS, range(int(most_replicas) + 1)),
        *grid(REQUESTS, range(0, most_requests + 1, TICK_REQUESTS)),
    ]
    for name, color, area, most in (
        ("replicas", GREEN, REPLICAS, most_replicas),
        ("running", BLUE, REQUESTS, most_requests),
        ("waiting", ORANGE, REQUESTS, most_requests),
    ):
        parts.append(steps([(each["at"], each[name]) for each in seconds], last, area, most, color))
    ticks = range(0, int(last) + 1, TICK_SECONDS)
    parts += [text(across(at, last), REQUESTS[1] + 22, f"{at} s") for at in ticks]
    box = f'viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{escape(TITLE)}"'
    return f'<svg xmlns="http://www.w3.org/2000/svg" {box}>\n' + "\n".join(parts) + "\n</svg>\n"


def across(at: float, last: float) -> float:
    """Return where a moment lies."""
    return LEFT + at / last * (WIDTH - LEFT - RIGHT)


def up(value: float, area: tuple[int, int], most: float) -> float:
    """Return how high a value lies in a part whose top is `most`."""
    top, bottom = area
    return bottom - value / max(most, 1.0) * (bottom - top)


def grid(area: tuple[int, int], values: Sequence[int]) -> list[str]:
    """Return lines at some values, the last of which is the part's greatest."""
    found = []
    for value in values:
        y = up(value, area, values[-1])
        found += [f'<line x1="{LEFT}" y1="{y:.1f}" x2="{WIDTH - RIGHT}" y2="{y:.1f}"/>']
        found += [text(LEFT - 8, y + 5, f"{value}", "end")]
    return found


def legend(entries: Sequence[tuple[str, str]]) -> list[str]:
    found, x = list[str](), float(LEFT)
    for words, color in entries:
        found += [f'<rect x="{x:.1f}" y="36" width="12" height="12" fill="{color}"/>', text(x + 17, 47, words, "start")]
        x += 34 + 8.2 * len(words)
    return found


def steps(points: Points, last: float, area: tuple[int, int], most: float, color: str) -> str:
    """Return a line that keeps each value until the next one."""
    path, before = list[str](), None
    for at, value in points:
        x, y = across(at, last), up(value, area, most)
        path += [] if before is None else [f"{x:.1f},{before:.1f}"]
        path.append(f"{x:.1f},{y:.1f}")
        before = y
    return f'<polyline fill="none" stroke="{color}" stroke-width="2" points="{" ".join(path)}"/>'

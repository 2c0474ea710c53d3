"""Draw how long streams wait over how long prompts take, for fixed chunks and for sliced ones.

    python benchmarks/curve_chart.py

It writes `docs/itl-curve.svg` from files of `interference.py`; `benchmarks/results/README.md` has the commands.
"""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

sys.path.insert(0, str(Path(__file__).parents[1]))

from benchmarks.interference import ITL_P99, TTFT
from benchmarks.results_chart import FOOT, RESULTS, ROOT, STYLE, WIDTH, in_words, page, read, text

OUT = ROOT / "docs" / "itl-curve.svg"
HEIGHT, LEFT, RIGHT, TOP, BOTTOM = 340, 76, 24, 74, 52
ABOVE, BELOW = -9.0, 18.0
LINES = """
  .grid { stroke: #d9e0e6 } .ours-line { stroke: #2f6fb7 } .other-line { stroke: #8d99a5 }
  polyline { fill: none; stroke-width: 2 }
  @media (prefers-color-scheme: dark) {
    .grid { stroke: #26313b } .ours-line { stroke: #4a8fdd } .other-line { stroke: #6d7b88 }
  }
"""


class Point(NamedTuple):
    """A setting of an engine."""

    label: str
    ttft: float
    """Mean time to the first token of the long prompts, in seconds."""
    itl: float
    """The 99th percentile of the gaps between two tokens of the streams, in seconds."""


class Curves(NamedTuple):
    """What is measured of one model."""

    title: str
    fixed: Sequence[Point]
    """Chunks of fixed sizes, from the smallest."""
    sliced: Sequence[Point]
    """ITL targets with sliced chunks, from the shortest."""
    others: Sequence[Point]
    """Another engine near them."""


def curves(results: Path) -> list[Curves]:
    """Read the figures of both models."""
    small = _figures(results / "curve-smollm2.json")
    peers = _figures(results / "interference-smollm2.json")
    others = {
        "openvino-int8-f32-64": "OpenVINO, 64",
        "openvino-int8-f32-default": "OpenVINO",
    }
    qwen = _figures(results / "curve-qwen3-0.6b.json")
    return [
        Curves(
            "SmolLM2-135M in eight bits, prompts of 2,000 tokens",
            _points(small, str.isdecimal),
            _points(small, _is_target),
            [Point(name, *peers[label]) for label, name in others.items()],
        ),
        Curves(
            "Qwen3-0.6B shape in bfloat16, prompts of 1,500 tokens",
            _points(qwen, str.isdecimal),
            _points(qwen, _is_target),
            [],
        ),
    ]


def _is_target(size: str) -> bool:
    return size.endswith("x")


def _figures(path: Path) -> Mapping[str, tuple[float, float]]:
    """Return the TTFT and the ITL of each configuration, in seconds."""
    found = read(path)["medians_in_seconds"]
    return {label: (own[TTFT], own[ITL_P99]) for label, own in found.items()}


def _points(figures: Mapping[str, tuple[float, float]], is_one: Callable[[str], bool]) -> list[Point]:
    sizes = {label.rpartition("-")[2]: own for label, own in figures.items()}
    chosen = sorted((size for size in sizes if is_one(size)), key=lambda size: int(size.removesuffix("x")))
    return [Point(size, *sizes[size]) for size in chosen]


class Axis(NamedTuple):
    """A logarithmic scale."""

    lowest: float
    highest: float
    start: float
    """Where `lowest` lies on the page."""
    end: float

    def at(self, value: float) -> float:
        share = math.log(value / self.lowest) / math.log(self.highest / self.lowest)
        return self.start + share * (self.end - self.start)

    def ticks(self) -> list[float]:
        """Return round values within the scale."""
        powers = range(math.floor(math.log10(self.lowest)), math.ceil(math.log10(self.highest)) + 1)
        every = [digit * 10.0**power for power in powers for digit in (1, 2, 3, 4, 5, 7)]
        return [tick for tick in every if self.lowest <= tick <= self.highest]


def _axis(values: Iterable[float], start: float, end: float) -> Axis:
    own = list(values)
    return Axis(min(own) / 1.15, max(own) * 1.15, start, end)


def chart(shown: Sequence[Curves]) -> str:
    """Return the SVG."""
    parts: list[str] = []
    for index, each in enumerate(shown):
        parts += _panel(each, index * HEIGHT)
    foot = "Two cores of an AMD EPYC processor, no GPU; four streams. Lower and further left is better."
    return page(HEIGHT * len(shown) + FOOT, " ".join(map(_spoken, shown)), STYLE + LINES, parts, foot)


def _spoken(shown: Curves) -> str:
    points = "; ".join(
        f"{point.label} {in_words(point.itl)} at {in_words(point.ttft)}"
        for point in (*shown.fixed, *shown.sliced, *shown.others)
    )
    return f"{shown.title}: {points}."


def _panel(shown: Curves, top: float) -> list[str]:
    points = [*shown.fixed, *shown.sliced, *shown.others]
    across = _axis((point.ttft for point in points), LEFT, WIDTH - RIGHT)
    down = _axis((point.itl for point in points), top + HEIGHT - BOTTOM, top + TOP)
    parts = [
        text(16, top + 26, shown.title, "head"),
        text(16, top + 45, "ITL p99 of the streams, over the time to the first token of the long prompts", "note"),
    ]
    for tick in across.ticks():
        x = across.at(tick)
        parts.append(f'<line class="grid" x1="{x:.1f}" x2="{x:.1f}" y1="{down.end:g}" y2="{down.start:g}"/>')
        parts.append(text(x, down.start + 18, f"{tick:g} s", "note", "middle"))
    for tick in down.ticks():
        y = down.at(tick)
        parts.append(f'<line class="grid" x1="{across.start:g}" x2="{across.end:g}" y1="{y:.1f}" y2="{y:.1f}"/>')
        parts.append(text(LEFT - 8, round(y + 4, 1), f"{1000 * tick:,.0f} ms", "note", "end"))
    parts += _series(shown.fixed, across, down, "other", "chunks of ", ABOVE)
    parts += _series(shown.sliced, across, down, "ours", "sliced, ", BELOW)
    for point in shown.others:
        x, y = across.at(point.ttft), down.at(point.itl)
        parts.append(f'<rect class="other" x="{x - 4:.1f}" y="{y - 4:.1f}" width="8" height="8"/>')
        parts.append(text(x + 8, round(y + 4, 1), point.label, "note"))
    return parts


def _series(points: Sequence[Point], across: Axis, down: Axis, kind: str, what: str, beside: float) -> list[str]:
    """Draw a line through settings; the first label says what its points are. Labels are so far below the points."""
    places = [(across.at(point.ttft), down.at(point.itl)) for point in points]
    line = " ".join(f"{x:.1f},{y:.1f}" for x, y in places)
    parts = [f'<polyline class="{kind}-line" points="{line}"/>']
    for index, (point, (x, y)) in enumerate(zip(points, places, strict=True)):
        parts.append(f'<circle class="{kind}" cx="{x:.1f}" cy="{y:.1f}" r="4.5"/>')
        parts.append(text(x - 4, round(y + beside, 1), (what if index == 0 else "") + point.label, "note", "end"))
    return parts


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=OUT)
    args = parser.parse_args()
    args.out.write_text(chart(curves(RESULTS)), encoding="utf-8")
    print(f"{args.out.stat().st_size} bytes in {args.out}")


if __name__ == "__main__":
    main()

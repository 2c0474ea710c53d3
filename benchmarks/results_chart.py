"""Draw the chart of README from the files in `benchmarks/results`.

    python benchmarks/results_chart.py

It writes `docs/benchmarks.svg`. `benchmarks/results/README.md` has the commands that wrote the files.
"""

from __future__ import annotations

import argparse
import json
import statistics
from collections.abc import Sequence
from html import escape
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "benchmarks" / "results"
OUT = ROOT / "docs" / "benchmarks.svg"
WIDTH, LEFT, RIGHT, TITLE, BAR, GAP, SPACE, FOOT = 880, 276, 90, 46, 18, 5, 14, 30
STYLE = """
  text { font: 14px "DejaVu Sans", Helvetica, Arial, sans-serif; fill: #24313d }
  .page { fill: #fbfcfd } .head { font-weight: 600; font-size: 15px } .note { fill: #5b6b7a; font-size: 12px }
  .ours { fill: #2f6fb7 } .other { fill: #a9b4bf } .bold { font-weight: 600 }
  @media (prefers-color-scheme: dark) {
    text { fill: #dde4ea } .page { fill: #12181e } .note { fill: #9aa8b5 }
    .ours { fill: #4a8fdd } .other { fill: #55626e }
  }
"""


class Bar(NamedTuple):
    label: str
    seconds: float
    is_ours: bool


class Panel(NamedTuple):
    """Bars on one scale."""

    title: str
    note: str
    bars: Sequence[Bar]


def panels(results: Path) -> list[Panel]:
    """Read the figures of the chart."""
    return [_waits(results), *_int8(results)]


def _waits(results: Path) -> Panel:
    """How long streams wait beside long prompts, by `interference.py`."""
    found = read(results / "interference-smollm2.json")["medians_in_seconds"]
    names = {
        "sluice-int8-4x": "Sluice, --itl-target 4x",
        "openvino-int8-f32-64": "OpenVINO 2026.4, chunks of 64",
        "sluice-int8-default": "Sluice, the default (8x)",
        "sluice-int8-128": "Sluice, chunks of 128",
        "vllm-bf16-64": "vLLM 0.32, chunks of 64",
        "llama.cpp-q8_0-64": "llama.cpp, chunks of 64",
    }
    return Panel(
        "Four answers are written while prompts of 2,000 tokens are read: the wait for a next token",
        "99% of all waits are no longer. SmolLM2-135M in eight bits (vLLM: bfloat16). Others' defaults wait longer.",
        [Bar(name, found[label]["decoders' ITL p99"], name.startswith("Sluice")) for label, name in names.items()],
    )


def _int8(results: Path) -> list[Panel]:
    """Steps with weights of eight bits, by `cpu_peers.py`."""
    rows = read(results / "cpu_peers_int8.json")["rows"]
    names = {"sluice:int8": "Sluice", "openvino:int8": "OpenVINO 2026.4", "llama.cpp:q8_0": "llama.cpp"}

    def bars(row: str, value: str, suffix: str) -> list[Bar]:
        return [
            Bar(name + suffix, statistics.median(turn["values"][value] for turn in rows[row][key]), name == "Sluice")
            for key, name in names.items()
        ]

    steps = [
        bar
        for count in (1, 8, 32)
        for bar in bars(f"decode-{count}", "decode step", f", {count} answer{'s' * (count > 1)}")
    ]
    note = "Qwen3-0.6B shape, weights in eight bits; medians of three turns in which each engine is measured once."
    return [
        Panel("The time in which each of several answers gets its next token", note, steps),
        Panel("The time to read a prompt of 2,048 tokens", note, bars("prefill", "TTFT p50", "")),
    ]


def chart(shown: Sequence[Panel]) -> str:
    """Return the SVG."""
    parts, y = [], 0.0
    for panel in shown:
        parts += [text(16, y + 26, panel.title, "head"), text(16, y + 43, panel.note, "note")]
        y += TITLE + 8
        longest = max(bar.seconds for bar in panel.bars)
        for bar in panel.bars:
            length = bar.seconds / longest * (WIDTH - LEFT - RIGHT)
            kind, weight = ("ours", "bold") if bar.is_ours else ("other", "")
            parts += [
                text(LEFT - 10, y + 14, bar.label, weight, "end"),
                f'<rect class="{kind}" x="{LEFT}" y="{y:g}" width="{length:.1f}" height="{BAR}" rx="2"/>',
                text(LEFT + length + 8, y + 14, in_words(bar.seconds), weight),
            ]
            y += BAR + GAP
        y += SPACE
    foot = "Two cores of an AMD EPYC processor, no GPU. Shorter is better."
    spoken = " ".join(
        f"{panel.title}: {'; '.join(f'{bar.label} {in_words(bar.seconds)}' for bar in panel.bars)}." for panel in shown
    )
    return page(y + FOOT, spoken, STYLE, parts, foot)


def page(height: float, spoken: str, style: str, parts: Sequence[str], foot: str) -> str:
    """Return an SVG of the charts' width.

    Args:
        spoken: what a screen reader says.
        parts: elements.
        foot: the line below them.
    """
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height:g}" role="img"'
            f' aria-label="{escape(spoken)}">',
            f"<style>{style}</style>",
            f'<rect class="page" width="{WIDTH}" height="{height:g}" rx="12"/>',
            *parts,
            text(16, height - 14, foot, "note"),
            "</svg>\n",
        ]
    )


def in_words(seconds: float) -> str:
    return f"{seconds:.1f} s" if seconds >= 1 else f"{1000 * seconds:.{0 if seconds >= 0.1 else 1}f} ms"


def text(x: float, y: float, words: str, kind: str = "", anchor: str = "start") -> str:
    of = f' class="{kind}"' if kind else ""
    return f'<text{of} x="{x:.1f}" y="{y:g}" text-anchor="{anchor}">{escape(words)}</text>'


def read(path: Path) -> Any:
    return json.loads(path.read_text(encoding="utf-8"))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=OUT)
    args = parser.parse_args()
    args.out.write_text(chart(panels(RESULTS)), encoding="utf-8")
    print(f"{args.out.stat().st_size} bytes in {args.out}")


if __name__ == "__main__":
    main()

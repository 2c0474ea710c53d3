"""Draw two recorded runs as an SVG that moves at their own pace: a long prompt in one piece, and in chunks.

    python benchmarks/record_page.py --machine "2 cores of a virtual machine"
    python benchmarks/record_page.py --machine "2 cores of a virtual machine" --chunked \\
        --out benchmarks/results/page-chunked.json
    python benchmarks/streams_picture.py

It reads the files that these two write, and writes `docs/streams.svg`.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from itertools import pairwise
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

from benchmarks.record_page import OUT as WHOLE

ROOT = Path(__file__).parents[1]
CHUNKED = ROOT / "benchmarks" / "results" / "page-chunked.json"
BEFORE = 0.8
"""Seconds that are shown before the long prompt arrives."""
AFTER = 0.6
"""Seconds that are shown behind the first token of the later answer to it."""
HOLD = 2.5
"""Seconds for which the whole picture stands still before it begins again."""
WIDTH, LEFT, RIGHT, HEAD, LANE, FOOT = 880, 128, 16, 46, 26, 50
TICK = 2.0
"""Width of a token; tokens that come closer than this join."""
STYLE = """
  text { font: 14px "DejaVu Sans", Helvetica, Arial, sans-serif; fill: #24313d }
  .page { fill: #fbfcfd } .head { font-weight: 600; font-size: 15px } .note { fill: #5b6b7a; font-size: 12px }
  .light { fill: #fff; font-size: 12px } .grid { stroke: #dde3e9 }
  .token { fill: #2e8b57 } .prompt { fill: #2f6fb7 } .wait { stroke: #8a97a4; stroke-width: 2; stroke-dasharray: 3 4 }
  .now { stroke: #c0392b; stroke-width: 2 }
  @media (prefers-color-scheme: dark) {
    text { fill: #dde4ea } .page { fill: #12181e } .note { fill: #9aa8b5 }
    .light { fill: #fff } .grid { stroke: #2a343e }
    .token { fill: #4fc384 } .prompt { fill: #3f7fcb } .wait { stroke: #7d8a97 }
  }
  .cover, .now { animation: go %(cycle).2fs linear infinite }
  @keyframes go { from { transform: none } %(share).1f%%, to { transform: translateX(%(length)dpx) } }
  @media (prefers-reduced-motion: reduce) { .cover, .now { animation: none; visibility: hidden } }
"""


@dataclass(frozen=True, slots=True)
class Recording:
    """A recorded run. Times are in seconds since the long prompt arrived."""

    model: str
    machine: str
    prompt_tokens: int
    streams: tuple[tuple[float, ...], ...]
    """When each of the other requests got its tokens."""
    chunks: tuple[tuple[float, float, int], ...]
    """When each chunk of the long prompt began and ended, and its tokens."""
    answer: tuple[float, ...]
    """When the long prompt's request got its tokens."""

    @property
    def longest_gap(self) -> float:
        """The longest time that a stream was without a token while the prompt was there, until its first token."""
        until = self.answer[0]
        return max(
            after - before
            for stream in self.streams
            for before, after in pairwise(stream)
            if after > 0 and before < until
        )


def read_recording(path: Path) -> Recording:
    """Read a file of `record_page.py`.

    Raises:
        ValueError: it ends too early.
    """
    record = json.loads(path.read_text(encoding="utf-8"))
    arrived = [each for event in record["events"] if event["kind"] == "requests" for each in event["arrived"]]
    (long,) = arrived
    times: dict[int, list[float]] = {each["id"]: [] for each in [*record["events"][0]["requests"], long]}
    chunks = []
    for step, decodes in steps_of(record["events"]):
        began, known = ((step[name] - long["arrived"]) / 1e6 for name in ("began", "known"))
        for chunk in step.get("chunks", ()):
            if chunk["id"] == long["id"]:
                chunks.append((began, began + step["micros"] / 1e6, chunk["length"]))
            decodes = [*decodes, *([chunk["id"]] if chunk["samples"] else [])]
        for request in decodes:
            times[request].append(known)
    answer = tuple(times.pop(long["id"]))
    if not answer:
        raise ValueError(f"{path} ends before the long prompt is read; record it again with a larger --after")
    return Recording(
        model=record["model"],
        machine=record["machine"],
        prompt_tokens=record["tokens"],
        streams=tuple(map(tuple, times.values())),
        chunks=tuple(chunks),
        answer=answer,
    )


def steps_of(events: Sequence[Mapping[str, Any]]) -> list[tuple[Mapping[str, Any], Sequence[int]]]:
    """Return the steps of a trace, each with the requests that decoded in it."""
    found = []
    for event in events:
        decodes: Sequence[int] = ()
        for step in event["steps"] if event["kind"] == "steps" else ():
            if step.get("decodes") is not None:  # otherwise as in the step before
                decodes = step["decodes"]
            found.append((step, decodes))
    return found


@dataclass(frozen=True, slots=True)
class Scale:
    """From seconds to pixels."""

    seconds: float

    def x(self, at: float) -> float:
        return LEFT + (at + BEFORE) / (BEFORE + self.seconds) * (WIDTH - LEFT - RIGHT)

    def is_shown(self, at: float) -> bool:
        return -BEFORE <= at <= self.seconds


def picture(whole: Recording, chunked: Recording) -> str:
    """Return the SVG: the run in one piece above, the one in chunks below, until both answer the long prompt."""
    seconds = max(run.answer[0] for run in (whole, chunked)) + AFTER
    scale = Scale(seconds)
    tall = HEAD + LANE * (len(whole.streams) + 1)
    height = 2 * tall + FOOT
    tokens = f"{whole.prompt_tokens:,}"
    stood = f"a prompt of {tokens} tokens in one piece: the others stand still for {_time(whole.longest_gap)}"
    sizes = sorted(length for _, _, length in chunked.chunks)
    goes = (
        f"Sluice reads it in {len(sizes)} chunks of up to {sizes[-1]} tokens: the others stand still for at most"
        f" {_time(chunked.longest_gap)}"
    )
    cycle = BEFORE + seconds + HOLD
    length = WIDTH - LEFT - RIGHT
    style = STYLE % {"cycle": cycle, "share": 100 * (BEFORE + seconds) / cycle, "length": length}
    foot = f"in real time; {whole.model} on {whole.machine}; the page of every Sluice server shows its own"
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" role="img" aria-label='
        f'"{escape(f"Four requests over {seconds + BEFORE:.0f} seconds. Above: {stood}. Below: {goes}.")}">',
        f"<style>{style}</style>",
        f'<clipPath id="plot"><rect x="{LEFT}" y="0" width="{length}" height="{height}"/></clipPath>',
        f'<rect class="page" width="{WIDTH}" height="{height}" rx="12"/>',
        *_grid(scale, height),
        *_run(whole, scale, 0),
        *_run(chunked, scale, tall),
        f'<g clip-path="url(#plot)"><rect class="page cover" x="{LEFT}" y="{HEAD - 18}" width="{length}"'
        f' height="{height - HEAD - FOOT + 18}"/><path class="now" d="M{LEFT} {HEAD - 18}V{height - FOOT}"/></g>',
        _text(16, 24, stood[0].upper() + stood[1:], "head"),
        f'<rect class="page" x="{LEFT}" y="{tall}" width="{length}" height="{HEAD - 14}"/>',
        _text(16, tall + 24, goes, "head"),
        _text(16, height - 10, foot, "note"),
        "</svg>",
    ]
    return "\n".join(parts) + "\n"


def _run(run: Recording, scale: Scale, top: float) -> list[str]:
    """Draw the lanes of a run."""
    parts = []
    for number, stream in enumerate((*run.streams, run.answer)):
        y = top + HEAD + LANE * number
        is_long = number == len(run.streams)
        parts.append(_text(16, y + 15, "the long prompt" if is_long else f"answer {'ABC'[number]}"))
        if is_long:
            parts += [_wait(run, scale, y), *(_chunk(*chunk, scale, y) for chunk in run.chunks)]
        parts.append(f'<path class="token" d="{_ticks(stream, scale, y)}"/>')
    return parts


def _ticks(times: Sequence[float], scale: Scale, y: float) -> str:
    """Return tokens as the path of a bar each."""
    found, last = [], -TICK
    for at in times:
        x = round(scale.x(at), 1)
        if scale.is_shown(at) and x - last >= TICK:
            found.append(f"M{x - TICK:.1f} {y:g}h{TICK - 0.5:g}v18h-{TICK - 0.5:g}z")
            last = x
    return "".join(found)


def _wait(run: Recording, scale: Scale, y: float) -> str:
    begins, ends = scale.x(0), scale.x(run.chunks[0][0])
    return f'<path class="wait" d="M{begins:.1f} {y + 9:g}H{max(begins, ends):.1f}"/>'


def _chunk(began: float, ended: float, tokens: int, scale: Scale, y: float) -> str:
    x, end = scale.x(began), min(scale.x(ended), WIDTH - RIGHT)
    rect = f'<rect class="prompt" x="{x:.1f}" y="{y:g}" width="{max(0.8, end - x - 0.8):.1f}" height="18" rx="2"/>'
    words = f"{tokens:,} tokens are read"
    return rect + (_text(x + 8, y + 13, words, "light") if end - x > 8 * len(words) else "")


def _grid(scale: Scale, height: float) -> list[str]:
    parts = []
    for second in range(int(scale.seconds) + 1):
        x = scale.x(second)
        parts.append(f'<path class="grid" d="M{x:.1f} {HEAD - 8}V{height - FOOT}"/>')
        parts.append(_text(x + 3, height - FOOT + 14, "the prompt arrives" if second == 0 else f"{second} s", "note"))
    return parts


def _text(x: float, y: float, words: str, kind: str = "") -> str:
    of = f' class="{kind}"' if kind else ""
    return f'<text{of} x="{x:g}" y="{y:g}">{escape(words)}</text>'


def _time(seconds: float) -> str:
    return f"{seconds:.1f} s" if seconds >= 1 else f"{1000 * seconds:.0f} ms"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--whole", type=Path, default=WHOLE, help="the run without chunks")
    parser.add_argument("--chunked", type=Path, default=CHUNKED, help="the run with chunks")
    parser.add_argument("--out", type=Path, default=ROOT / "docs" / "streams.svg")
    args = parser.parse_args()
    args.out.write_text(picture(read_recording(args.whole), read_recording(args.chunked)), encoding="utf-8")
    print(f"{args.out.stat().st_size} bytes in {args.out}")


if __name__ == "__main__":
    main()

"""The pictures of README: what they say is what the files say that they are drawn from."""

from __future__ import annotations

import json
import xml.etree.ElementTree as ElementTree
from pathlib import Path
from typing import Any

from benchmarks.page import interval_of_median
from benchmarks.results_chart import OUT, RESULTS, Bar, Panel, chart, panels
from benchmarks.streams_picture import CHUNKED, WHOLE, picture, read_recording

DOCS = Path(__file__).parents[2] / "docs"


def step(began: int, micros: int, **more: Any) -> dict[str, Any]:
    return {"step": began, "began": began, "micros": micros, "known": began + micros, "bound_by": "nothing", **more}


def recorded(folder: Path) -> Path:
    """Two streams; one stands still for 900 ms while the prompt is read, and for 2 s when it is over."""
    events = [
        {"kind": "hello", "now": 0, "requests": [{"id": 1}, {"id": 2}]},
        {"kind": "steps", "steps": [step(900_000, 50_000, decodes=[1, 2]), step(950_000, 50_000)]},
        {"kind": "requests", "arrived": [{"id": 3, "arrived": 1_000_000}], "ended": []},
        {
            "kind": "steps",
            "steps": [
                step(1_000_000, 800_000, decodes=[2], chunks=[{"id": 3, "length": 4000, "samples": True}]),
                step(1_800_000, 100_000, decodes=[1, 2, 3]),
                step(3_800_000, 100_000),
            ],
        },
    ]
    path = folder / "recorded.json"
    path.write_text(json.dumps({"machine": "a machine", "model": "a <model>", "tokens": 4000, "events": events}))
    return path


def test_a_recording_is_read_as_the_page_reads_it(tmp_path: Path) -> None:
    run = read_recording(recorded(tmp_path))
    assert run.streams == ((-0.05, 0.0, 0.9, 2.9), (-0.05, 0.0, 0.8, 0.9, 2.9))
    assert run.chunks == ((0.0, 0.8, 4000),)
    assert run.answer == (0.8, 0.9, 2.9)
    assert run.longest_gap == 0.9, "what comes behind the prompt is not of it"


def test_the_moving_picture(tmp_path: Path) -> None:
    run = read_recording(recorded(tmp_path))
    text = picture(run, run)
    ElementTree.fromstring(text)
    assert "stand still for 900 ms" in text
    assert "a &lt;model&gt; on a machine" in text
    assert text.count("4,000 tokens are read</text>") == 2


def test_the_moving_picture_of_the_readme_is_that_of_the_files() -> None:
    """Another recording was made, and the picture still showed the old one."""
    assert (DOCS / "streams.svg").read_text() == picture(read_recording(WHOLE), read_recording(CHUNKED))


def test_the_chart_of_the_readme_is_that_of_the_files() -> None:
    """Figures that nobody computes again are wrong after the next measurement."""
    text = chart(panels(RESULTS))
    ElementTree.fromstring(text)
    assert OUT.read_text() == text


def test_bars_are_in_proportion() -> None:
    text = chart([Panel("t", "n", [Bar("a", 0.2, is_ours=True), Bar("b & c", 0.8, is_ours=False)])])
    widths = [float(each.attrib["width"]) for each in ElementTree.fromstring(text).iter() if "rx" in each.attrib]
    assert widths[2] == 4 * widths[1]
    assert "200 ms</text>" in text
    assert "b &amp; c" in text


def test_an_interval_of_the_median() -> None:
    """Of the values' order alone: 95% of the medians lie between the 6th and the 15th of twenty."""
    assert interval_of_median(range(1, 21)) == (6, 15)
    assert interval_of_median([1, 2, 3, 4, 5, 600]) == (1, 600)

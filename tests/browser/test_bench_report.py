"""The report of `sluice bench --html` as a person sees it: drawn, marked, readable."""

from __future__ import annotations

from itertools import combinations
from pathlib import Path
from typing import Literal

import pytest
from playwright.sync_api import Browser

from bench_makers import record, result
from browser.looking import Look, looking
from sluice.bench.html import page
from sluice.bench.records import Failure
from sluice.bench.workload import LONG

pytestmark = pytest.mark.slow
STALLS = ((1.0, 0.6), (3.0, 0.5))
"""When long prompts arrive, and how long streams stand still then, which have a token each 50 ms otherwise."""
PLOTS = ("itl-over-time", "cdf-ttft", "cdf-itl", "cdf-e2e")


def tokens(start: float) -> list[float]:
    """A stream of five seconds."""
    steady = [start + 0.05 * index for index in range(100)]
    return [at for at in steady if not any(stall < at <= stall + seconds for stall, seconds in STALLS)]


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    streams = [record(*tokens(0.01 * index), due=0.0, sent=0.0) for index in range(4)]
    long = [
        record(*(stall + seconds * factor for factor in (1, 1.1, 1.3)), due=stall, sent=stall, kind=LONG)
        for stall, seconds in STALLS
    ]
    failed = record(ended=2.0, due=1.5, failure=Failure("HTTP 503", "the queue is full " * 8))
    path = tmp_path_factory.mktemp("report") / "report.html"
    path.write_text(page(result([*streams, *long, failed])), encoding="utf-8")
    return path


def test_it_opens_without_complaints_and_asks_for_nothing(browser: Browser, report: Path) -> None:
    """A path that is no path, a font from elsewhere: the page would look fine on the machine that made it."""
    with looking(browser, report) as look:
        assert look.complaints == []
        assert look.requests == []
        assert look.page.get_by_role("heading", level=1).inner_text() == "sluice bench: toy"


@pytest.mark.parametrize("plot", PLOTS)
def test_every_plot_has_marks_that_can_be_seen(browser: Browser, report: Path, plot: str) -> None:
    """A path without a stroke, or one that ends up outside of the plot."""
    with looking(browser, report) as look:
        (frame,) = look.boxes(f"#{plot} svg")
        marks = look.boxes(f"#{plot} path.dots, #{plot} path.line")
        assert len(marks) == 2  # short and long requests
        for mark in marks:
            assert mark["width"] > 0
            assert mark["height"] > 0
            assert frame["x"] <= mark["x"] <= mark["x"] + mark["width"] <= frame["x"] + frame["width"]
            assert frame["y"] <= mark["y"] <= mark["y"] + mark["height"] <= frame["y"] + frame["height"]
        assert look.ask("s => getComputedStyle(document.querySelector(s)).stroke", f"#{plot} path.series-0") != "none"


def test_a_stall_is_a_dot_where_the_stall_was(browser: Browser, report: Path) -> None:
    """The one dot for which the plot is made is the easiest to lose: to rounding, or behind the plot's edge."""
    with looking(browser, report) as look:
        look.page.locator("#itl-over-time").scroll_into_view_if_needed()
        for left, right, top in bands(look):
            # At the band's right edge, near its top, where the streams' next tokens are.
            hits = look.ask(
                "([x, y]) => { const found = new Set(); for (let i = -12; i < 28; i++) for (let j = 0; j < 60; j++)"
                " found.add(document.elementFromPoint(x + i, y + j)?.getAttribute('class')); return [...found]; }",
                [right, top],
            )
            assert "dots series-0" in hits, (left, right, hits)


def bands(look: Look) -> list[tuple[float, float, float]]:
    """Left, right and top of what marks the long prompts."""
    found = look.boxes("#itl-over-time rect.window")
    return [(box["x"], box["x"] + box["width"], box["y"]) for box in found]


def test_long_prompts_are_marked_on_the_plot_of_itls(browser: Browser, report: Path) -> None:
    with looking(browser, report) as look:
        titles = look.ask("() => [...document.querySelectorAll('rect.window title')].map(n => n.textContent)")
        assert titles == [f"a long prompt in prefill, {at:.2f} s to {at + seconds:.2f} s" for at, seconds in STALLS]
        (one, other) = bands(look)
        assert one[1] - one[0] == pytest.approx(0.3 * (other[0] - one[0]), rel=0.02)  # 0.6 s long, 2 s apart
        look.page.locator("#itl-over-time").scroll_into_view_if_needed()
        left, _, top = bands(look)[0]
        inside, outside = look.pixel(left + 3, top + 3), look.pixel(left - 3, top + 3)
        assert max(abs(a - b) for a, b in zip(inside, outside, strict=True)) > 40


SCHEMES: tuple[Literal["dark", "light"], ...] = ("light", "dark")


@pytest.mark.parametrize("scheme", SCHEMES)
def test_text_and_marks_stand_out_in_light_and_dark(
    browser: Browser, report: Path, scheme: Literal["dark", "light"]
) -> None:
    """A colour that was chosen for one of them alone. 4.5 and 3 are what WCAG asks of text and of graphics."""
    with looking(browser, report, scheme=scheme) as look:
        for text in ("h1", ".sub", ".tiles dd", ".tiles dt", "td", "thead th", ".note", "pre", "figcaption p", ".tick"):
            assert look.contrast(text) >= 4.5, text
        for mark in ("path.line.series-0", "path.line.series-1"):
            assert look.contrast(mark) >= 3, mark
        behind = look.ask("() => getComputedStyle(document.body).backgroundColor")
        assert (behind == "rgb(255, 255, 255)") == (scheme == "light")


@pytest.mark.parametrize("width", [400, 1000])
def test_it_can_be_read_at_any_width(browser: Browser, report: Path, width: int) -> None:
    """Names that break after every letter, labels too small or over each other, a page that scrolls sideways."""
    with looking(browser, report, width=width) as look:
        assert look.ask("() => document.documentElement.scrollWidth") <= width
        for name in look.boxes("#latencies-all th[scope=row]"):
            assert name["height"] < 45
        for plot in PLOTS:
            labels = look.boxes(f"#{plot} .tick, #{plot} .label")
            assert len(labels) > 6
            assert min(label["height"] for label in labels) >= 10
            assert not [pair for pair in combinations(labels, 2) if overlap(*pair)], plot


def overlap(one: dict[str, float], other: dict[str, float]) -> bool:
    """By more than the empty margin of a letter."""
    across = min(one["x"] + one["width"], other["x"] + other["width"]) - max(one["x"], other["x"])
    down = min(one["y"] + one["height"], other["y"] + other["height"]) - max(one["y"], other["y"])
    return across > 1 and down > 3

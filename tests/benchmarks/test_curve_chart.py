"""The chart of docs/itl-target.md: what it says is what the files say that it is drawn from."""

from __future__ import annotations

import xml.etree.ElementTree as ElementTree

from benchmarks.curve_chart import OUT, Curves, Point, chart, curves
from benchmarks.results_chart import RESULTS


def test_the_chart_is_that_of_the_files() -> None:
    """Figures that nobody computes again are wrong after the next measurement."""
    text = chart(curves(RESULTS))
    ElementTree.fromstring(text)
    assert OUT.read_text() == text


def test_what_is_faster_lies_further_left_and_lower() -> None:
    fixed = [Point("64", 2.0, 0.1), Point("128", 1.0, 0.4)]
    text = chart([Curves("t", fixed, [Point("4x", 1.0, 0.1)], [Point("a & b", 4.0, 1.6)])])
    circles = [each.attrib for each in ElementTree.fromstring(text).iter() if each.tag.endswith("circle")]
    small, large, target = ((float(each["cx"]), float(each["cy"])) for each in circles)
    assert target == (large[0], small[1])
    assert large[0] < small[0]
    assert large[1] < small[1], "the page's y grows downwards"
    assert "a &amp; b" in text


def test_equal_ratios_are_equally_far_apart() -> None:
    fixed = [Point("1", 1.0, 0.1), Point("2", 2.0, 0.2), Point("4", 4.0, 0.4)]
    text = chart([Curves("t", fixed, [], [])])
    places = [float(each.attrib["cx"]) for each in ElementTree.fromstring(text).iter() if each.tag.endswith("circle")]
    assert places[1] - places[0] == round(places[2] - places[1], 1)

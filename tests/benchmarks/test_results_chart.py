"""The chart of the README: what it says is what the files say that it is drawn from."""

from __future__ import annotations

import xml.etree.ElementTree as ElementTree

from benchmarks.results_chart import OUT, RESULTS, Bar, Panel, chart, panels


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

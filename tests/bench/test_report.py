"""What people see: the table, the page, and the remarks without which the numbers mislead."""

from __future__ import annotations

from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench_makers import record, result
from sluice.bench import BenchError
from sluice.bench.html import page
from sluice.bench.metrics import summarize
from sluice.bench.options import options_from
from sluice.bench.plots import CDF_POINTS, Axis, cdf_points, value_axis
from sluice.bench.records import CountedBy, Failure, Record, Run
from sluice.bench.report import milliseconds, remarks, table
from sluice.bench.results import BenchResult, read_result, write_result

LOST = Failure("broken stream", "<the stream> broke off")
STEADY = [record(1.0 + 0.01 * i, 1.02 + 0.01 * i, 1.05 + 0.01 * i, due=0.01 * i) for i in range(9)]
LONG = record(1.9, 1.95, due=1.0, kind="long")


def notes(*records: Record, lag: tuple[float, ...] = (), **options: object) -> str:
    run = Run("now", records, lag)
    settings = result(records, options=options_from(options)).settings
    return "\n".join(remarks(run, summarize(records), settings))


@pytest.mark.parametrize(
    ("seconds", "shown"),
    [(None, "-"), (0.0, "0.00"), (0.00123, "1.23"), (0.0999, "99.90"), (0.1, "100.0"), (12.3456, "12346")],
)
def test_milliseconds(seconds: float | None, shown: str) -> None:
    assert milliseconds(seconds) == shown


def test_the_table_has_every_number() -> None:
    text = table(result([*STEADY, LONG, record(ended=3.0, due=1.0, failure=LOST)]))
    lines = text.splitlines()
    assert "11 requests, 1 failed" in text
    assert "http://test" in lines[0]
    for name in ("all requests (11, 1 failed)", "short (10, 1 failed)", "long (1, 0 failed)"):
        assert any(line.startswith(name) for line in lines), name
    ttft = next(line.split() for line in lines if line.startswith("  TTFT "))
    assert ttft == ["TTFT", "990.0", "1000.0", "1000.0", "1000.0", "1000.0", "1000.0", "10"]
    assert any(line.split() == ["ITL", "outside", *["50.00"] * 6, "1"] for line in lines)
    assert "  1 x broken stream: <the stream> broke off (waited up to 2000.0 ms)" in lines


def test_goodput_is_shown_if_it_was_asked_for() -> None:
    assert "goodput" not in table(result(STEADY))
    limited = result(STEADY, options=options_from({"goodput": ["ttft:1000", "itl:25"]}))
    assert "goodput         0 requests" in table(limited)
    generous = result(STEADY, options=options_from({"goodput": ["ttft:1001"]}))
    assert "100.0% of all" in table(generous)


def test_what_makes_numbers_mislead_is_said() -> None:
    assert notes(*STEADY) == ""
    assert "1 of 10 requests failed" in notes(*STEADY, record(failure=LOST))
    assert "does not stream" in notes(record((1.0, 5)), record((1.0, 3)))
    assert "does not stream" not in notes(record(1.0), record(1.0))
    bundled = notes(record(1.0, (2.0, 3)), *STEADY)
    assert "3.4% of the events carried several tokens (2 tokens came with another one" in bundled
    assert "came in the same read" in notes(record(1.0, 1.0), *STEADY)
    assert "does not count its tokens" in notes(record(1.0, counted_by=CountedBy.EVENTS))
    assert "1 answers ended before" in notes(record(1.0, max_tokens=5))
    assert "after they were due" in notes(record(1.0, sent=0.5))
    assert "after they were due" not in notes(record(1.0, sent=0.01))
    assert "too busy" in notes(*STEADY, lag=(0.5,) * 50)


def test_a_workload_that_the_server_had_before_is_reported() -> None:
    """The same command twice: the second time a prefix cache has every prompt, and TTFT is that of no prefill."""
    again = [replace(each, prompt_tokens=100, cached_tokens=96) for each in STEADY]
    assert "96% of the prompt tokens were in the server's cache" in notes(*again)
    for alike in ({"shared_prefix_tokens": 64}, {"turns": 2}, {"unique_prompts": False}):
        assert notes(*again, **alike) == "", alike
    assert notes(*(replace(each, cached_tokens=0) for each in again)) == ""


class Page(HTMLParser):
    """What a browser would find in a page: elements by id, text, and all that it would load."""

    VOID = frozenset({"meta", "rect", "path", "br"})

    def __init__(self, text: str) -> None:
        super().__init__()
        self.ids: dict[str, str] = {}
        self.roles: list[tuple[str, dict[str, str | None]]] = []
        self.text: list[str] = []
        self.loads: list[str] = []
        self.open: list[str] = []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        self.loads += [value for name, value in attrs if name in ("src", "href", "srcset", "data") and value]
        if tag in ("script", "link", "iframe", "img"):
            self.loads.append(tag)
        if name := given.get("id"):
            assert name not in self.ids, f"two elements are called {name}"
            self.ids[name] = tag
        if tag == "svg":
            self.roles.append((tag, given))
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        if tag not in self.VOID:
            assert self.open.pop() == tag, f"{tag} closes something else"

    def handle_data(self, data: str) -> None:
        self.text.append(data)


def parsed(shown: BenchResult) -> Page:
    found = Page(page(shown))
    assert found.open == [], "an element is not closed"
    return found


def test_the_page_loads_nothing_and_names_its_parts() -> None:
    found = parsed(result([*STEADY, LONG, record(ended=3.0, due=1.0, failure=LOST)]))
    assert found.loads == []
    sections = {"summary", "errors", "settings", "itl-over-time", "cdf-ttft", "cdf-itl", "cdf-e2e", "latencies-all"}
    assert sections <= found.ids.keys()
    assert {"latencies-short", "latencies-long", "latencies-windows"} <= found.ids.keys()
    text = " ".join(found.text)
    assert "<the stream> broke off" in text
    assert "1 of 11 requests failed" in text


def test_every_plot_can_be_read_without_seeing_it() -> None:
    found = parsed(result([*STEADY, LONG]))
    assert len(found.roles) == 4
    for _, attributes in found.roles:
        assert attributes["role"] == "img"
        for name in (attributes["aria-labelledby"] or "").split():
            assert name in found.ids
    assert "short: half within 1000.0 ms" in " ".join(found.text)
    assert "a long prompt in prefill, 1.00 s to 1.90 s" in " ".join(found.text)


def test_several_runs_and_names_of_any_kind() -> None:
    """Names come from servers and files."""
    named = [record(1.0, 2.0, kind='<b>"x"</b>'), *STEADY]
    found = parsed(result(named, STEADY))
    assert {"run-1-summary", "run-2-summary", "run-1-cdf-itl", "run-2-cdf-itl"} <= found.ids.keys()
    assert '<b>"x"</b> requests' in found.text


def test_a_run_in_which_everything_failed_has_a_page() -> None:
    found = parsed(result([record(ended=1.0, failure=LOST)]))
    assert "errors" in found.ids
    assert "cdf-ttft" not in found.ids


@given(st.lists(st.floats(1e-4, 1e5), min_size=1, max_size=20))
def test_axes_hold_their_values_in_order(values: list[float]) -> None:
    axis = value_axis(values, 0.0, 100.0)
    places = [axis.place(value) for value in sorted(values)]
    assert places == sorted(places)
    assert 0 <= places[0] <= places[-1] <= 100
    assert axis.ticks()
    assert all(axis.low <= tick <= axis.high * 1.0001 for tick in axis.ticks())


def test_a_stall_does_not_flatten_the_rest() -> None:
    axis = value_axis([10.0] * 99 + [2000.0], 0.0, 100.0)
    assert axis.log
    assert not value_axis([10.0, 30.0], 0.0, 100.0).log
    assert Axis(1.0, 100.0, 0.0, 10.0, log=True).place(10.0) == pytest.approx(5.0)


@given(st.lists(st.floats(0, 100), min_size=1, max_size=2000))
def test_a_cdf_ends_at_the_largest_value_and_never_falls(values: list[float]) -> None:
    points = cdf_points(values)
    assert points[-1] == (max(values), 1.0)
    assert points == sorted(points)
    assert len(points) <= CDF_POINTS
    for value, share in points:
        assert sum(item <= value for item in values) / len(values) >= share - 1e-9


def test_a_result_file_gives_back_what_was_written(tmp_path: Path) -> None:
    written = result([*STEADY, LONG], [record(ended=3.0, due=1.0, failure=LOST, accepted=None)])
    file = tmp_path / "a.json"
    write_result(written, file)
    read = read_result(file)
    assert read.runs == written.runs
    assert table(read) == table(written)
    assert page(read) == page(written)


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("", "is not a result of sluice bench --json"),
        ("{}", "is not a result of sluice bench --json"),
        ("[1]", "is not a result of sluice bench --json"),
        ("\udcff", "is not a result of sluice bench --json"),
    ],
)
def test_files_that_are_no_results(tmp_path: Path, content: str, said: str) -> None:
    file = tmp_path / "a.json"
    file.write_bytes(content.encode(errors="surrogateescape"))
    with pytest.raises(BenchError) as error:
        read_result(file)
    assert said in str(error.value)
    with pytest.raises(BenchError, match="cannot read"):
        read_result(tmp_path / "nothing")


def test_a_result_of_another_version_or_without_a_run(tmp_path: Path) -> None:
    file = tmp_path / "a.json"
    file.write_bytes(msgspec.json.encode(_changed(format="9")))
    with pytest.raises(BenchError, match="has the format '9'"):
        read_result(file)
    file.write_bytes(msgspec.json.encode(_changed(runs=[])))
    with pytest.raises(BenchError, match="holds no run"):
        read_result(file)


def _changed(**fields: object) -> dict[str, object]:
    content: dict[str, object] = msgspec.to_builtins(result(STEADY))
    return content | fields

"""Every number against a slow and obvious computation, and against what its reader would expect."""

from __future__ import annotations

import math
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench_makers import record
from sluice.bench.metrics import (
    Goodput,
    Span,
    add_latency,
    e2e,
    errors,
    gaps,
    itls,
    parse_goodput,
    percentile,
    prefill_windows,
    split_itls,
    spread,
    summarize,
    tpot,
    ttft,
    ttft_after_send,
)
from sluice.bench.records import Failure, Record
from sluice.config import ConfigError

TIMES = st.floats(0, 100, allow_nan=False)
LOST = Failure("broken stream", "the stream broke off before its end")


@st.composite
def records(draw: st.DrawFn) -> Record:
    times = sorted(draw(st.lists(TIMES, max_size=8)))
    counts = draw(st.lists(st.integers(1, 3), min_size=len(times), max_size=len(times)))
    due = draw(st.floats(0, times[0] if times else 50))
    failed = not times or draw(st.booleans())
    return record(
        *zip(times, counts, strict=True),
        due=due,
        ended=max([due, *times]) + 1,
        kind=draw(st.sampled_from(["short", "long"])),
        failure=LOST if failed else None,
    )


@given(st.lists(TIMES, min_size=1, max_size=50), st.sampled_from([0.0, 50, 90, 95, 99, 100]))
def test_percentiles_are_numpys(values: list[float], q: float) -> None:
    assert percentile(sorted(values), q) == pytest.approx(float(np.percentile(values, q)), abs=1e-9)


@given(st.lists(TIMES, min_size=1))
def test_a_spread(values: list[float]) -> None:
    found = spread(values)
    assert (found.count, found.max) == (len(values), max(values))
    assert found.mean == pytest.approx(sum(values) / len(values))
    assert [found.p50, found.p90, found.p95, found.p99] == pytest.approx(list(np.percentile(values, [50, 90, 95, 99])))


def test_the_latencies_of_one_request() -> None:
    one = record(3.0, 3.5, 5.0, due=1.0, sent=1.25, accepted=1.5)
    assert ttft(one) == 2.0
    assert ttft_after_send(one) == 1.75
    assert itls([one]) == [0.5, 1.5]
    assert tpot(one) == 1.0
    assert e2e(one) == 4.0
    assert add_latency(one) == 0.25


def test_bundled_tokens_do_not_hide_a_stall() -> None:
    """A gap of 3 s before an event of 4 tokens that is spread becomes four of 0.75 s, and the stall is gone."""
    assert itls([record(1.0, (4.0, 4), 4.5)]) == [3.0, 0.0, 0.0, 0.0, 0.5]
    assert itls([record((4.0, 3))]) == [0.0, 0.0]


@given(records())
def test_gaps_are_one_for_each_token_but_the_first(one: Record) -> None:
    flat = [at for at, tokens in one.arrivals for _ in range(tokens)]
    assert [gap.seconds for gap in gaps(one)] == [after - before for before, after in pairwise(flat)]


@given(st.lists(records(), min_size=1, max_size=5))
def test_windows_cover_what_the_long_prompts_wait_and_no_more(found: list[Record]) -> None:
    """Against asking for each moment."""
    windows = prefill_windows(found)
    assert all(before.end < after.start for before, after in pairwise(windows))
    waits = [
        (one.sent, one.ended if one.first_token is None else one.first_token) for one in found if one.kind == "long"
    ]
    edges = sorted({edge for wait in waits for edge in wait})
    for left, right in pairwise(edges):
        middle = (left + right) / 2
        waited = any(start < middle < end for start, end in waits)
        assert waited == any(window.start < middle < window.end for window in windows)


@given(st.lists(records(), max_size=4), st.lists(st.tuples(TIMES, TIMES), max_size=4))
def test_split_itls_against_asking_for_each_gap(found: list[Record], drawn: list[tuple[float, float]]) -> None:
    edges = sorted({edge for pair in drawn for edge in pair})
    windows = [Span(*pair) for pair in zip(edges[::2], edges[1::2], strict=False)]
    inside, outside = split_itls(found, windows)
    every = [gap for one in found for gap in gaps(one)]
    touching = [gap for gap in every if any(gap.start < window.end and gap.end > window.start for window in windows)]
    assert inside == [gap.seconds for gap in touching]
    assert sorted(inside + outside) == sorted(gap.seconds for gap in every)


def test_a_stall_is_seen_inside_the_window_of_its_long_prompt() -> None:
    """One stall among hundreds of tokens is above the 99th percentile: only the window shows it."""
    steady = record(*(0.01 * step for step in range(1, 200)), *(3.0 + 0.01 * step for step in range(200)))
    long = record(3.0, due=2.0, sent=2.0, kind="long")
    found = summarize([steady, long])
    assert found.all.itl.p99 == pytest.approx(0.01)
    assert found.all.itl.max == pytest.approx(3.0 - 1.99)
    assert found.itl_in_windows.count == 1
    assert found.itl_in_windows.p50 == pytest.approx(3.0 - 1.99)
    assert found.itl_outside.max == pytest.approx(0.01)


@given(st.lists(records(), min_size=1, max_size=6))
def test_a_summary_adds_up(found: list[Record]) -> None:
    summary = summarize(found, Goodput())
    assert summary.requests == len(found) == sum(kind.requests for kind in summary.by_kind.values())
    assert summary.failed == sum(one.failed for one in found)
    assert summary.output_tokens == sum(tokens for one in found for _, tokens in one.arrivals)
    assert summary.all.ttft.count == sum(bool(one.arrivals) for one in found)
    assert summary.all.e2e.count == summary.requests - summary.failed
    assert summary.all.itl.count == summary.itl_in_windows.count + summary.itl_outside.count
    assert summary.good == summary.requests - summary.failed
    assert summary.output_per_second * summary.seconds == pytest.approx(summary.output_tokens)
    last = max(one.ended if one.failed else one.arrivals[-1].at for one in found)
    assert summary.seconds == pytest.approx(max(1e-9, last - min(one.due for one in found)))


def test_tokens_before_a_failure_count_and_what_never_came_is_reported() -> None:
    """Dropping failed requests makes the worst server look best: those that waited longest are the ones that fail."""
    broken = record(2.0, 9.0, due=0.0, ended=30.0, failure=LOST)
    refused = record(due=1.0, ended=1.5, failure=Failure("HTTP 503", "full"))
    summary = summarize([record(1.0, 2.0), broken, refused])
    assert (summary.requests, summary.failed, summary.output_tokens) == (3, 2, 4)
    assert summary.all.ttft.max == 2.0
    assert summary.all.itl.max == 7.0
    assert (summary.all.ttft.count, summary.all.e2e.count) == (2, 1)
    assert summary.seconds == 30.0
    failures = errors([record(1.0), broken, refused, refused])
    assert [(item.kind, item.count, item.longest_wait) for item in failures] == [
        ("HTTP 503", 2, 0.5),
        ("broken stream", 1, 21.0),
    ]


@pytest.mark.parametrize(
    ("limits", "good"),
    [
        ("ttft:2000", True),
        ("ttft:1999", False),
        ("itl:1500", True),
        ("itl:1499", False),
        ("tpot:1000", True),
        ("tpot:999", False),
        ("e2e:4000", True),
        ("e2e:3999", False),
        ("ttft:2000 itl:1500 tpot:1000 e2e:4000", True),
        ("ttft:2000 itl:1", False),
    ],
)
def test_goodput_holds_every_limit(limits: str, good: bool) -> None:
    one = record(3.0, 3.5, 5.0, due=1.0)
    assert parse_goodput(limits).is_good(one) is good


def test_a_failed_request_is_never_good() -> None:
    generous = parse_goodput("ttft:99999")
    assert generous.is_good(record(1.0))
    assert not generous.is_good(record(1.0, failure=LOST))
    assert not generous.is_good(record(ended=1.0, failure=LOST))


@pytest.mark.parametrize(
    "text", ["", "ttft", "ttft:", "ttft:x", "ttft:0", "ttft:-1", "ttft:nan", "speed:1", "itl:1 itl:2"]
)
def test_goodput_limits_that_are_none(text: str) -> None:
    with pytest.raises(ConfigError, match="--goodput takes NAME:MILLISECONDS"):
        parse_goodput(text)


def test_what_came_together_is_counted_apart() -> None:
    summary = summarize([record(1.0, 1.0, (2.0, 3), 3.0, max_tokens=9)])
    assert (summary.events, summary.bundled_events, summary.bundled_tokens) == (4, 1, 2)
    assert summary.together == 1
    assert summary.short_answers == 1


def test_cached_tokens_are_unknown_rather_than_none() -> None:
    assert summarize([record(1.0)]).cached_tokens is None
    assert summarize([record(1.0, cached_tokens=0), record(1.0, cached_tokens=4)]).cached_tokens == 4


def test_a_run_without_a_token() -> None:
    summary = summarize([record(ended=0.0, failure=LOST)])
    assert summary.all.ttft.p50 is None
    assert math.isfinite(summary.output_per_second)

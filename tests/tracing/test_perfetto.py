"""The timeline: every chunk is a slice on its request's track, and a viewer draws them as they are."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest

from life_traces import Event, timeline, tracks
from recorded import play, recorded_engine, trace_file
from sluice.engine.messages import Abort, Submit
from sluice.testing import resolved
from sluice.tracing.format import Add, Copied, End, Loaded
from sluice.types import CopyDone, FinishReason
from worlds import Arrival, World, limits_of

WORLD = World(limits_of(chunk=64, batch=80), num_pages=64, page_size=4)
ARRIVALS = [Arrival(0, Submit(0, (1, 0, 1), resolved(6))), Arrival(3, Submit(1, (0,) * 60, resolved(2)))]


def recorded(path: Path, arrivals: Sequence[Arrival], *, world: World = WORLD, at_launch: bool = True) -> list[Event]:
    play(recorded_engine(world, trace_file(path, world), at_launch=at_launch), arrivals)
    return timeline(path)


def shown(track: list[Event]) -> list[tuple[str, float, float]]:
    return [(event["name"], event["ts"], event.get("dur", 0.0)) for event in track]


def test_a_request_that_ends_outside_of_steps_is_finished(tmp_path: Path) -> None:
    """A page that cannot be written to the disk, or read from it, ends its request between two steps."""
    path = tmp_path / "trace"
    file = trace_file(path, WORLD)
    for number in (0, 1):
        submit = Submit(number, (1, 0, 1), resolved())
        file.write(Add.of(submit, number=number, at=0.0, refused=None))
    ends = [(End(number, FinishReason.ERROR, 0, 0, "the disk is gone"),) for number in (0, 1)]
    file.write(Copied(number=2, at=0.001, done=(CopyDone(5, error="gone"),), ends=ends[0]))
    file.write(Loaded(number=3, at=0.002, step=0, error="gone", ends=ends[1]))
    file.close()
    found = tracks(timeline(path))
    assert shown(found["request 0"]) == [("add", 0, 0), ("waits", 0, 1000), ("finish: error", 1000, 0)]
    assert shown(found["request 1"]) == [("add", 0, 0), ("waits", 0, 2000), ("finish: error", 2000, 0)]


def test_a_timeline_of_a_known_run(tmp_path: Path) -> None:
    found = tracks(recorded(tmp_path / "trace", ARRIVALS))
    assert list(found) == ["request 0", "steps", "request 1"]
    assert shown(found["request 0"]) == [
        ("add", 0, 0),
        ("prefill 3", 0, 1300),
        ("decode", 1300, 1000),
        ("decode", 2300, 1000),
        ("decode", 3300, 8000),
        ("decode", 11300, 2000),
        ("decode", 13300, 1000),
        ("finish: length", 14300, 0),
    ]
    assert shown(found["request 1"]) == [
        ("add", 3300, 0),
        ("prefill 60", 3300, 8000),
        ("decode", 11300, 2000),
        ("finish: length", 13300, 0),
    ]
    assert [event["name"] for event in found["steps"]] == ["prefill", "decode", "decode", "mixed", "decode", "decode"]
    assert found["steps"][3]["args"]["bound by"] == "nothing"
    assert found["request 1"][1]["args"] == {
        "step": 3, "start": 0, "length": 60, "slot": 1, "new pages": 15, "sampled": 1,
    }  # fmt: skip


@pytest.mark.parametrize("at_launch", [True, False])
def test_steps_in_flight_together_are_drawn_one_after_the_other(tmp_path: Path, at_launch: bool) -> None:
    """Overlapping slices of one track would be drawn inside each other. Each is as long as its step took."""
    world = replace(WORLD, limits=replace(WORLD.limits, lookahead=1), depth=2, late=True)
    steps = tracks(recorded(tmp_path / "trace", ARRIVALS, world=world, at_launch=at_launch))["steps"]
    assert {event["name"]: event["dur"] for event in steps}["mixed"] == pytest.approx(8000)
    for one, other in pairwise(steps):
        assert one["ts"] + one["dur"] <= other["ts"] + 0.01


def test_waiting_and_preemption_are_drawn(tmp_path: Path) -> None:
    world = World(limits_of(chunk=16, running=3), num_pages=12, page_size=2)
    prompts = [((0, 1), 20), ((1, 0, 1, 0, 1), 8), ((1, 1, 0), 8), ((1,), 2)]
    arrivals = [Arrival(0, Submit(i, prompt, resolved(count))) for i, (prompt, count) in enumerate(prompts)]
    found = tracks(recorded(tmp_path / "trace", arrivals, world=world))
    track = found["request 2"]
    back = [event["name"] for event in track].index("preempt")
    last, preempted, waits, prefill = track[back - 1 : back + 3]
    assert (waits["name"], prefill["name"].split()[0]) == ("waits", "prefill")
    assert preempted["ts"] == waits["ts"] == pytest.approx(last["ts"] + last["dur"])
    assert waits["ts"] + waits["dur"] == pytest.approx(prefill["ts"])
    assert [event["name"] for event in found["request 3"]][:2] == ["add", "waits"]


def test_aborts_and_refusals_are_drawn(tmp_path: Path) -> None:
    path = tmp_path / "trace"
    engine = recorded_engine(WORLD, trace_file(path, WORLD))
    engine.link.put(Submit(0, (1,) * 100, resolved(5)), Submit(1, (1,) * 300, resolved(5)))
    engine.step()
    engine.link.put(Abort(0))
    engine.step()
    engine.close()
    found = tracks(timeline(path))
    assert [event["name"] for event in found["request 0"]] == ["add", "prefill 64", "abort"]
    assert [event["name"] for event in found["steps"]] == ["refuse request 1", "prefill"]

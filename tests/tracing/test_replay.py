"""A recorded run is planned again byte for byte, under every setting; the first difference is named."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from life_traces import replayed
from recorded import play, recorded_engine, trace_file
from sluice.engine.messages import FlushCache, Submit
from sluice.scheduler.setup import SchedulerSetup
from sluice.testing import Faults, resolved
from sluice.tracing.format import TraceError
from sluice.tracing.replay import ReplayError
from sluice.types import SamplingParams
from worlds import Arrival, World, limits_of

WORLD = World(limits_of(chunk=8), num_pages=32, page_size=2)
OVERLAP = replace(WORLD, limits=limits_of(chunk=8, lookahead=1), depth=2, late=True)
ARRIVALS = [Arrival(i, Submit(i, (i % 2, *(1,) * (3 + 4 * i)), resolved(4, seed=i))) for i in range(4)]

Edit = Callable[[dict[str, Any]], None]


def recorded(path: Path, world: World = WORLD, faults: Faults | None = None) -> Path:
    play(recorded_engine(world, trace_file(path, world), faults=faults), ARRIVALS)
    return path


def edit(path: Path, kind: str, change: Edit, index: int = 0) -> int:
    """Change one record of a kind. Returns its line."""
    lines = path.read_text().splitlines()
    at = [number for number, line in enumerate(lines) if json.loads(line)["kind"] == kind][index]
    record = json.loads(lines[at])
    change(record)
    lines[at] = json.dumps(record, separators=(",", ":"))
    path.write_text("\n".join(lines) + "\n")
    return at + 1


def set_chunk(field: int, value: object) -> Edit:
    def change(record: dict[str, Any]) -> None:
        record["plan"]["chunks"][0][field] = value

    return change


@pytest.mark.parametrize(
    ("change", "field", "said", "instead"),
    [
        (set_chunk(5, [31, 30]), "chunks[0].new_pages", "(31, 30)", "(0, 1)"),
        (set_chunk(4, [0, 1, 0, 1]), "chunks[0].token_ids", "(0, 1, 0, 1)", "(0, 1, 1, 1)"),
        (set_chunk(3, 3), "chunks", "request 0 [0, 3)", "request 0 [0, 4)"),
        (set_chunk(6, False), "chunks[0].samples", "False", "True"),
        (lambda record: record["plan"].update(bound_by="kv_pages"), "bound_by", "kv_pages", "nothing"),
        (lambda record: record["plan"].update(num_decodes=1), "num_decodes", "1", "0"),
        (lambda record: record["plan"].update(step=5), "step", "5", "0"),
        (
            lambda record: record["plan"]["new_slots"][0][1].update(sample_index=1),
            "new_slots[0].sample_index",
            "1",
            "0",
        ),
        (lambda record: record["plan"]["new_slots"][0].__setitem__(2, 9), "new_slots[0].prompt_len", "9", "4"),
        (lambda record: record["plan"].update(new_slots=[]), "new_slots", "0", "1"),
    ],
)
def test_the_first_difference_is_named(tmp_path: Path, change: Edit, field: str, said: str, instead: str) -> None:
    """As if the scheduler planned otherwise than the one that was recorded."""
    path = recorded(tmp_path / "trace")
    line = edit(path, "step", change)
    found = replayed(path).divergence
    assert found is not None
    assert (found.line, found.field, found.recorded, found.replayed) == (line, field, said, instead)
    assert str(found).startswith("step ")


def test_a_difference_in_a_later_step_is_named_with_it(tmp_path: Path) -> None:
    path = recorded(tmp_path / "trace", OVERLAP)
    line = edit(path, "step", set_chunk(1, 3), index=4)
    result = replayed(path)
    assert result.divergence is not None
    assert result.divergence.where == "step 4, planned"
    assert result.divergence.line == line
    assert result.steps == 4


def test_other_limits_plan_otherwise(tmp_path: Path) -> None:
    """The replay builds the scheduler of the header, so a trace shows what another setting would have done."""
    path = recorded(tmp_path / "trace")
    edit(path, "header", lambda record: record["setup"]["limits"].update(chunked_prefill_size=4))
    found = replayed(path).divergence
    assert found is not None
    assert found.field in ("bound_by", "chunks")


def test_other_ends_are_named(tmp_path: Path) -> None:
    path = recorded(tmp_path / "trace")
    edit(path, "step", lambda record: record.update(ends=[[0, "stop", 4, 0, None]]), index=-1)
    found = replayed(path).divergence
    assert found is not None
    assert (found.field, "stop" in found.recorded, "length" in found.replayed) == ("ends", True, True)


def test_a_deadline_and_a_flush_are_inputs(tmp_path: Path) -> None:
    """The scheduler knows no clock: without them in the trace a replay would go on with requests that were dropped."""
    path = tmp_path / "trace"
    late = [replace(arrival.submit, start_deadline=0.0005, deadline=0.002) for arrival in ARRIVALS]
    engine = recorded_engine(WORLD, trace_file(path, WORLD))
    engine.link.put(*late[:3])
    engine.step()
    engine.step()
    engine.link.put(FlushCache(1), Submit(9, (1,) * 9, resolved(2)))
    engine.step()
    link = play(engine, [])
    assert [link.end(i).finish_reason.value for i in range(3)] == ["timeout", "timeout", "expired"]
    assert replayed(path).divergence is None
    edit(path, "flush_cache", lambda record: record.update(pages=99))
    found = replayed(path).divergence
    assert found is not None
    assert (found.where, found.field, found.recorded) == ("a flush of the cache", "pages", "99")


def test_a_scheduler_that_breaks_is_named(tmp_path: Path) -> None:
    """A replay of a file that was edited by hand ends with a line, not with a traceback."""
    path = recorded(tmp_path / "trace")
    edit(path, "step", lambda record: record.update(tokens=[]))
    found = replayed(path).divergence
    assert found is not None
    assert found.field == "what the scheduler did"
    assert "StopIteration" in found.replayed


@pytest.mark.parametrize(
    ("kind", "change", "said"),
    [
        ("add", lambda record: record.pop("prompt"), "request 0 has no prompt"),
        ("step", lambda record: record.pop("tokens"), "step 0 has neither tokens nor an error"),
        ("step", lambda record: record.update(number=0), "call 0 occurs twice"),
        ("step", lambda record: record.update(number=1), "call 1 occurs twice"),
        ("header", lambda record: record["setup"].update(num_pages=0), "at least one page, got 0"),
        ("header", lambda record: record.update(token_ids=False), "without token ids"),
    ],
)
def test_a_trace_that_cannot_be_replayed_says_why(tmp_path: Path, kind: str, change: Edit, said: str) -> None:
    path = recorded(tmp_path / "trace")
    edit(path, kind, change)
    with pytest.raises(ReplayError, match=said):
        replayed(path)


def test_a_lost_line_is_not_taken_for_a_crash(tmp_path: Path) -> None:
    path = recorded(tmp_path / "trace")
    lines = path.read_text().splitlines(keepends=True)
    path.write_text("".join(lines[:4] + lines[5:]))
    with pytest.raises(TraceError, match=r"call \d+ is missing: lines were lost before line 5"):
        replayed(path)


@pytest.mark.parametrize("world", [WORLD, OVERLAP, replace(OVERLAP, depth=3)])
def test_every_beginning_of_a_trace_replays(tmp_path: Path, world: World) -> None:
    """An engine that was killed leaves one. With several steps in flight, some were planned and never written."""
    path, part = recorded(tmp_path / "trace", world), tmp_path / "part"
    whole = path.read_bytes()
    lines = whole.splitlines(keepends=True)
    steps = 0
    for count in range(1, len(lines) + 1):
        part.write_bytes(b"".join(lines[:count]) + whole[:7])
        found = replayed(part)
        assert found.divergence is None
        assert steps <= found.steps <= steps + 1
        steps = found.steps
    assert steps == replayed(path).steps > 5


def test_a_step_in_flight_at_the_end_is_planned_again(tmp_path: Path) -> None:
    path = tmp_path / "trace"
    engine = recorded_engine(OVERLAP, trace_file(path, OVERLAP))
    engine.link.put(ARRIVALS[3].submit)
    engine.step()
    engine.step()
    assert len(engine.in_flight) == 1
    engine.close()
    assert replayed(path).steps == 2


def test_numbers_may_be_given_as_integers(tmp_path: Path) -> None:
    """A temperature of 1 is written as 1 and read as 1.0: the plan is the same."""
    path = tmp_path / "trace"
    asked = SamplingParams(max_tokens=2, temperature=1, top_p=1, min_p=0, seed=0)
    play(recorded_engine(WORLD, trace_file(path, WORLD)), [Arrival(0, Submit(0, (1,), asked))])
    assert '"temperature":1,' in path.read_text()
    found = replayed(path)
    assert (found.divergence, found.steps) == (None, 2)


def test_a_setup_builds_what_it_says() -> None:
    setup = SchedulerSetup(limits_of(), num_pages=5, page_size=4, prefix_caching=False)
    scheduler = setup.build()
    assert scheduler.limits == setup.limits
    assert scheduler.occupancy().total_pages == 5
    with pytest.raises(ValueError, match="exceed the KV pool of 20 tokens"):
        scheduler.add(Submit(0, (1,) * 20, resolved(1)))
    with pytest.raises(ValueError, match="page_size must be at least 1, got 0"):
        replace(setup, page_size=0).build()


def test_a_request_that_another_engine_began_replays(tmp_path: Path) -> None:
    """Its first outputs are in no step of this trace: without them every plan after it would differ."""
    path, scored = tmp_path / "trace", SamplingParams(max_tokens=6, seed=0, prompt_logprobs=0)
    resumed = [
        Submit(0, (1, 0, 1), resolved(6), output_ids=(1, 1, 0, 1)),
        Submit(1, (0,) * 20, scored, prompt_logprobs_sent=8),
    ]
    play(recorded_engine(WORLD, trace_file(path, WORLD)), [Arrival(0, submit) for submit in resumed])
    found = replayed(path)
    assert (found.divergence, found.steps > 0) == (None, True)
    edit(path, "add", lambda record: record.update(output_ids=[1, 1, 0, 0]))
    different = replayed(path).divergence
    assert different is not None
    assert different.field == "chunks[0].token_ids"

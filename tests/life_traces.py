"""What must hold of the trace of any life, and traces as timelines and summaries."""

from __future__ import annotations

import io
import json
from collections import Counter, defaultdict
from itertools import pairwise
from pathlib import Path
from typing import Any

from sluice.sim.exact import follow
from sluice.tracing.file import TraceReader
from sluice.tracing.format import Step, TraceError
from sluice.tracing.perfetto import write_perfetto
from sluice.tracing.replay import Replayed, replay
from sluice.tracing.run import TracedRun, read_run
from sluice.tracing.summary import TraceSummary, report, summarize
from worlds import World

Event = dict[str, Any]


def replayed(path: Path) -> Replayed:
    with TraceReader(path) as trace:
        return replay(trace)


def run_of(path: Path) -> TracedRun:
    with TraceReader(path) as trace:
        return read_run(trace)


def summary_of(path: Path, gap_ms: float = 5.0) -> TraceSummary:
    with TraceReader(path) as trace:
        return summarize(trace.header, read_run(trace), gap_ms)


def steps_of(path: Path) -> list[Step]:
    with TraceReader(path) as trace:
        return [line.record for line in trace if isinstance(line.record, Step)]


def timeline(path: Path) -> list[Event]:
    out = io.StringIO()
    with TraceReader(path) as trace:
        count = write_perfetto(trace.header, trace, out)
    events: list[Event] = json.loads(out.getvalue())["traceEvents"]
    assert len(events) == count
    return events


def tracks(events: list[Event]) -> dict[str, list[Event]]:
    """Return slices and instants by the name of their track."""
    names = {event["tid"]: event["args"]["name"] for event in events if event["name"] == "thread_name"}
    found: defaultdict[str, list[Event]] = defaultdict(list)
    for event in events:
        if event["ph"] in "Xi":
            found[names[event["tid"]]].append(event)
    return found


def check_trace(path: Path, world: World, met: Counter[str]) -> None:
    """Check the trace of a life to whose end every request was answered; count in `met` what it shows."""
    steps = steps_of(path)
    check_replay(path, steps)
    check_simulation(path, met)
    check_timeline(timeline(path), steps, world, met)
    check_summary(path)


def check_replay(path: Path, steps: list[Step]) -> None:
    """It is planned again, byte for byte."""
    found = replayed(path)
    assert found.divergence is None, str(found.divergence)
    assert (found.steps, found.unended) == (len(steps), 0)


def check_simulation(path: Path, met: Counter[str]) -> None:
    """Recorded times and arrivals give the same plans, unless the device lost its state."""
    with TraceReader(path) as trace:
        try:
            found = follow(trace)
        except TraceError:
            met["not simulated"] += 1
            return
    assert (found.divergence, found.equal) == (None, found.steps), str(found)
    met["simulated"] += 1


def check_timeline(events: list[Event], steps: list[Step], world: World, met: Counter[str]) -> None:
    """Every chunk is a slice on its request's track, except those of requests that had ended while the step was in
    flight. Slices of a track never overlap, except those of two offloaded chunks in one step."""
    drawn = tracks(events)
    of_requests = [(name, event) for name, track in drawn.items() if name != "steps" for event in track]
    slices = {
        (int(name.split()[1]), event["args"]["step"])
        for name, event in of_requests
        if event["ph"] == "X" and event["name"] != "waits"
    }
    chunks = {(chunk.request_id, step.plan.step) for step in steps for chunk in step.plan.chunks}
    chunks |= {(each.chunk.request_id, step.plan.step) for step in steps for each in step.plan.slices}
    assert slices <= chunks
    assert chunks == slices or world.depth > 1
    for name, track in drawn.items():
        spans = [event for event in track if event["ph"] == "X"]
        for one, other in pairwise(spans):
            is_one_step = "to item" in other["args"] and one["args"].get("step") == other["args"]["step"]
            assert is_one_step or one["ts"] + one["dur"] <= other["ts"] + 0.01
        instants = [event["name"] for event in track if event["ph"] == "i"]
        assert sum(each == "abort" or each.startswith("finish") for each in instants) == (name != "steps")
    check_offloaded(events, steps, met)


def check_offloaded(events: list[Event], steps: list[Step], met: Counter[str]) -> None:
    """A step that completes a chunk and begins the next showed the items, and the sample, of one for both."""
    planned = {
        (step.plan.step, each.chunk.start, each.first, each.stop, each.total)
        for step in steps
        for each in step.plan.slices
    }
    requests = [[each.chunk.request_id for each in step.plan.slices] for step in steps]
    met["slices of two chunks in a step"] += sum(len(ids) > len(set(ids)) for ids in requests)
    drawn = [event["args"] for event in events if event["name"].startswith("offloaded ")]
    keys = ("step", "start", "from item", "to item", "of items")
    assert {tuple(args[key] for key in keys) for args in drawn} <= planned
    assert not any(args["sampled"] for args in drawn if args["to item"] < args["of items"])


def check_summary(path: Path) -> None:
    """Counts per request and per step have the same sums, and every request has ended."""
    run, summary = run_of(path), summary_of(path)
    assert all(request.end is not None for request in run.requests.values())
    assert all(len(r.token_times) == r.end.num_outputs for r in run.requests.values() if r.end is not None)
    assert sum(summary.bound_by.values()) == summary.steps == len(run.steps)
    kinds = (summary.mixed_steps, summary.decode_steps, summary.prefill_steps)
    assert sum(kinds) + summary.slice_steps + summary.other_steps == summary.steps
    chunks = sum(row.chunks for row in summary.table)
    assert chunks == sum(len(step.prefills) for step in run.steps)
    assert summary.output_tokens == sum(row.output_tokens for row in summary.table)
    assert str(summary.steps) in report(summary, table=True)

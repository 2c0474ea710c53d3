"""A trace as Chrome's trace events, which https://ui.perfetto.dev opens.

One process: a track of steps, and one for each request with a slice for the time it waited and one for every chunk.
Format: "Trace Event Format", Google, 2016 (duration, instant, counter and metadata events in a JSON object).
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from typing import Any, TextIO

from sluice.tracing.file import Line
from sluice.tracing.format import Abort, Add, Copied, End, ForgetDevice, Header, Loaded, Step
from sluice.tracing.run import sampled
from sluice.types import BatchPlan, Chunk, FinishReason

PROCESS = 1
STEPS = 1
"""Thread id of the steps; those of requests follow, in the order of their arrival."""

Event = dict[str, Any]


def write_perfetto(header: Header, lines: Iterable[Line], out: TextIO) -> int:
    """Write the JSON of a whole trace. Returns the number of events.

    Raises:
        TraceError: the file is broken.
    """
    count = 0
    out.write('{"displayTimeUnit":"ms","traceEvents":[')
    for event in Converter(header).events(lines):
        out.write((",\n" if count else "\n") + json.dumps(event, separators=(",", ":")))
        count += 1
    out.write("\n]}\n")
    return count


class Converter:
    """Turns records into events."""

    def __init__(self, header: Header) -> None:
        self._header = header
        self._threads: dict[int, int] = {}
        """Request id -> thread id, of those that have not ended."""
        self._num_threads = STEPS
        self._waits_since: dict[int, float] = {}
        self._ran_until: dict[int, float] = {}
        """Request id -> end of its last chunk, of those that were admitted."""
        self._free_at = 0.0
        """When the previous step was done."""

    def events(self, lines: Iterable[Line]) -> Iterator[Event]:
        yield _name("process_name", 0, f"sluice {self._header.model}")
        yield from self._thread(STEPS, "steps")
        for line in lines:
            match line.record:
                case Step() as step:
                    yield from self._step(step)
                case Add() as add:
                    yield from self._add(add)
                case Abort(ends=ends, at=at) | Copied(ends=ends, at=at) | Loaded(ends=ends, at=at):
                    yield from self._ends(ends, at)
                case ForgetDevice(at=at):
                    yield _instant(STEPS, "device lost", at, {})

    def _thread(self, thread: int, name: str) -> Iterator[Event]:
        yield _name("thread_name", thread, name)
        yield {"ph": "M", "pid": PROCESS, "tid": thread, "name": "thread_sort_index", "args": {"sort_index": thread}}

    def _add(self, add: Add) -> Iterator[Event]:
        args = {"request": add.request_id, "prompt tokens": add.prompt_len, "max tokens": add.sampling.max_tokens}
        if add.refused is not None:
            yield _instant(STEPS, f"refuse request {add.request_id}", add.at, args | {"why": add.refused})
            return
        self._num_threads += 1
        self._threads[add.request_id] = self._num_threads
        self._waits_since[add.request_id] = add.at
        yield from self._thread(self._num_threads, f"request {add.request_id}")
        yield _instant(self._num_threads, "add", add.at, args | {"priority": add.priority_class or add.priority})

    def _step(self, record: Step) -> Iterator[Event]:
        if record.launched_at is None or record.ended_at is None:
            return
        plan = record.plan
        start, end = self._busy(record, record.launched_at, record.ended_at)
        yield _slice(STEPS, step_name(plan), start, end, _step_args(plan, record))
        yield {
            "ph": "C",
            "pid": PROCESS,
            "name": "tokens a step",
            "ts": _us(start),
            "args": {
                "decode": plan.num_decoded,
                "drafts": plan.num_drafts,
                "prefill": plan.num_tokens - plan.num_decoded - plan.num_drafts,
            },
        }
        yield from self._preempted(plan)
        counts = {(chunk.request_id, chunk.start): count for chunk, count in sampled(record)}
        for name, chunk, items in _rows(plan):
            thread = self._threads.get(chunk.request_id)
            if thread is None:
                continue  # it ended while this was in flight
            if (since := self._waits_since.pop(chunk.request_id, None)) is not None and since < start:
                yield _slice(thread, "waits", since, start, {})
            args = _chunk_args(plan, chunk, counts.get((chunk.request_id, chunk.start), 0)) | items
            yield _slice(thread, name if name == "decode" else f"{name} {chunk.length}", start, end, args)
            self._ran_until[chunk.request_id] = end
        yield from self._ends(record.ends, end)

    def _busy(self, record: Step, launched_at: float, ended_at: float) -> tuple[float, float]:
        """Return when the step was computed, as well as the engine can know. Steps run one after the other. If the
        engine had to wait, the step was done when the wait was over; if not, it was computed at its launch (cpu)."""
        launch_ms = record.device_ms - record.wait_ms
        end = ended_at if record.wait_ms >= launch_ms else launched_at + launch_ms / 1000
        start = max(launched_at, self._free_at)
        self._free_at = max(start, end)
        return start, self._free_at

    def _preempted(self, plan: BatchPlan) -> Iterator[Event]:
        """Yield the preemptions that a plan shows. No plan records one, but the request is admitted again; it was
        preempted after its last chunk."""
        for new in plan.new_slots:
            since, thread = self._ran_until.get(new.request_id), self._threads.get(new.request_id)
            if since is not None and thread is not None:
                self._waits_since[new.request_id] = since
                yield _instant(thread, "preempt", since, {"back in step": plan.step})

    def _ends(self, ends: Iterable[End], at: float) -> Iterator[Event]:
        for end in ends:
            thread = self._threads.pop(end.request_id, None)
            since = self._waits_since.pop(end.request_id, None)
            self._ran_until.pop(end.request_id, None)
            if thread is None:
                continue
            if since is not None and since < at:
                yield _slice(thread, "waits", since, at, {})
            args = {"output tokens": end.num_outputs, "cached tokens": end.num_cached_tokens, "error": end.error}
            name = "abort" if end.reason is FinishReason.ABORT else f"finish: {end.reason.value}"
            yield _instant(thread, name, at, args)


def step_name(plan: BatchPlan) -> str:
    """Return the kind of a step in a word."""
    has_layers = any(each.is_resident for each in plan.slices)
    if not plan.chunks:
        return "layers" if has_layers else "offloaded" if plan.slices else "copies"
    if plan.num_decoded == len(plan.chunks) and not has_layers:
        return "decode"
    return "mixed" if plan.num_decoded else "prefill"


def _rows(plan: BatchPlan) -> Iterator[tuple[str, Chunk, Event]]:
    """Yield what a step computes for each request: a kind, a chunk, and the work items of a slice of a chunk.

    A step can hold two slices of a request: the last of one chunk, and the first of the next.
    """
    sliced = {each.chunk.request_id for each in plan.slices}
    for row, chunk in enumerate(plan.chunks):
        if chunk.request_id not in sliced:
            yield "decode" if row < plan.num_decodes else "prefill", chunk, {}
    for each in plan.slices:
        kind, item = ("layers", "layer") if each.is_resident else ("offloaded", "item")
        args = {f"from {item}": each.first, f"to {item}": each.stop, f"of {item}s": each.total}
        yield kind, each.chunk, args


def _step_args(plan: BatchPlan, record: Step) -> Event:
    return {
        "step": plan.step,
        "tokens": plan.num_tokens,
        "decodes": plan.num_decoded,
        "drafted": plan.num_drafts,
        "accepted": sum(record.accepted),
        "prefills": len(plan.chunks) - plan.num_decoded,
        "bound by": plan.bound_by.value,
        "host ms": record.host_ms,
        "device ms": record.device_ms,
        "error": record.error,
    }


def _chunk_args(plan: BatchPlan, chunk: Chunk, sampled: int) -> Event:
    return {
        "step": plan.step,
        "start": chunk.start,
        "length": chunk.length,
        "slot": chunk.slot,
        "new pages": len(chunk.new_pages),
        "sampled": sampled,
    } | ({"drafts": chunk.num_drafts} if chunk.num_drafts else {})


def _slice(thread: int, name: str, start: float, end: float, args: Event) -> Event:
    begin = _us(start)
    return {
        "ph": "X",
        "pid": PROCESS,
        "tid": thread,
        "name": name,
        "ts": begin,
        "dur": round(max(0.0, _us(end) - begin), 3),
        "args": args,
    }


def _instant(thread: int, name: str, at: float, args: Event) -> Event:
    return {"ph": "i", "s": "t", "pid": PROCESS, "tid": thread, "name": name, "ts": _us(at), "args": args}


def _name(what: str, thread: int, name: str) -> Event:
    return {"ph": "M", "pid": PROCESS, "tid": thread, "name": what, "args": {"name": name}}


def _us(seconds: float) -> float:
    return round(seconds * 1e6, 3)

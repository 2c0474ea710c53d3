"""Gaps between the tokens of a request, and what took place in them."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import defaultdict
from dataclasses import dataclass

from sluice.tracing.run import Prefill, SliceRun, StepRun, TracedRun

CAUSES_SHOWN = 3
"""Steps named for each gap: those that took most of it; and requests that arrived in it."""


@dataclass(frozen=True, slots=True)
class Cause:
    """A step that ran while a request waited for its next token."""

    step: int
    ms: float
    """How much of the gap the runner was at it."""
    num_decodes: int
    prefills: tuple[Prefill, ...]
    slices: tuple[SliceRun, ...]
    failed: bool


@dataclass(frozen=True, slots=True)
class PromptArrival:
    """A request that arrived while another one waited for its next token: its prompt had to be received and queued."""

    request_id: int
    at: float
    prompt_len: int


@dataclass(frozen=True, slots=True)
class Gap:
    """A stretch between two tokens of a request; requests that waited for the same steps share one."""

    start: float
    ms: float
    request_ids: tuple[int, ...]
    num_steps: int
    """Steps that the runner was at in it."""
    causes: tuple[Cause, ...]
    """Causes of the gap, the longest first."""
    runner_ms: float
    """How much of it the runner was at any step; the rest is the scheduler, the link and other work of the host."""
    num_arrivals: int = 0
    """Requests that arrived in it."""
    arrivals: tuple[PromptArrival, ...] = ()
    """Arrivals with the longest prompts, longest first."""


def find_gaps(run: TracedRun, over_ms: float) -> list[Gap]:
    """Return the gaps of more than `over_ms`, longest first."""
    windows: defaultdict[tuple[float, float], list[int]] = defaultdict(list)
    for request in run.requests.values():
        times = request.token_times
        for index in range(1, len(times)):
            if (times[index] - times[index - 1]) * 1000 > over_ms:
                windows[times[index - 1], times[index]].append(request.request_id)
    ends = [step.ended_at for step in run.steps]
    arrivals = sorted(
        (PromptArrival(each.request_id, each.added_at, each.prompt_len) for each in run.requests.values()),
        key=lambda arrival: arrival.at,
    )
    gaps = [_gap(run.steps, ends, arrivals, window, ids) for window, ids in windows.items()]
    return sorted(gaps, key=lambda gap: (-gap.ms, gap.start))


def _gap(
    steps: list[StepRun], ends: list[float], arrivals: list[PromptArrival], window: tuple[float, float], ids: list[int]
) -> Gap:
    start, end = window
    causes: list[Cause] = []
    for step in steps[bisect_left(ends, start) :]:
        if step.launched_at >= end:
            break
        ms = overlap_ms(step.launch, window) + overlap_ms(step.wait, window)
        if ms > 0:
            failed = step.error is not None
            causes.append(Cause(step.step, round(ms, 3), step.num_decodes, step.prefills, step.slices, failed))
    causes.sort(key=lambda cause: (-cause.ms, cause.step))
    first = bisect_left(arrivals, start, key=lambda arrival: arrival.at)
    came = arrivals[first : bisect_right(arrivals, end, key=lambda arrival: arrival.at)]
    longest = sorted(came, key=lambda arrival: (-arrival.prompt_len, arrival.request_id))
    return Gap(
        start=start,
        ms=round((end - start) * 1000, 3),
        request_ids=tuple(sorted(ids)),
        num_steps=len(causes),
        causes=tuple(causes[:CAUSES_SHOWN]),
        runner_ms=round(sum(cause.ms for cause in causes), 3),
        num_arrivals=len(came),
        arrivals=tuple(longest[:CAUSES_SHOWN]),
    )


def overlap_ms(one: tuple[float, float], other: tuple[float, float]) -> float:
    """Return how long two stretches of time, in seconds, overlap, in milliseconds."""
    return max(0.0, min(one[1], other[1]) - max(one[0], other[0])) * 1000

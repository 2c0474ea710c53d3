"""Where streams stood still, and what the engine did in the meantime."""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from dataclasses import dataclass

from sluice.tracing.run import Offloaded, Prefill, Run, StepRun

CAUSES_SHOWN = 3
"""Steps named for each gap: those that took most of it."""


@dataclass(frozen=True, slots=True)
class Cause:
    """A step that ran while a stream waited."""

    step: int
    ms: float
    """How much of the gap the runner was at it."""
    num_decodes: int
    prefills: tuple[Prefill, ...]
    offloaded: tuple[Offloaded, ...]
    failed: bool


@dataclass(frozen=True, slots=True)
class Gap:
    """A stretch between two tokens of a stream; streams that waited for the same are told together."""

    start: float
    ms: float
    request_ids: tuple[int, ...]
    num_steps: int
    """Steps that the runner was at in it."""
    causes: tuple[Cause, ...]
    """Those that took most of it, most first."""
    runner_ms: float
    """How much of it the runner was at any step; the rest is the scheduler, the link and other work of the host."""


def find_gaps(run: Run, over_ms: float) -> list[Gap]:
    """The gaps of more than `over_ms`, longest first."""
    windows: defaultdict[tuple[float, float], list[int]] = defaultdict(list)
    for request in run.requests.values():
        times = request.token_times
        for index in range(1, len(times)):
            if (times[index] - times[index - 1]) * 1000 > over_ms:
                windows[times[index - 1], times[index]].append(request.request_id)
    ends = [step.ended_at for step in run.steps]
    gaps = [_gap(run.steps, ends, window, ids) for window, ids in windows.items()]
    return sorted(gaps, key=lambda gap: (-gap.ms, gap.start))


def _gap(steps: list[StepRun], ends: list[float], window: tuple[float, float], ids: list[int]) -> Gap:
    start, end = window
    causes: list[Cause] = []
    for step in steps[bisect_left(ends, start) :]:
        if step.launched_at >= end:
            break
        ms = overlap_ms(step.launch, window) + overlap_ms(step.wait, window)
        if ms > 0:
            failed = step.error is not None
            causes.append(Cause(step.step, round(ms, 3), step.num_decodes, step.prefills, step.offloaded, failed))
    causes.sort(key=lambda cause: (-cause.ms, cause.step))
    return Gap(
        start=start,
        ms=round((end - start) * 1000, 3),
        request_ids=tuple(sorted(ids)),
        num_steps=len(causes),
        causes=tuple(causes[:CAUSES_SHOWN]),
        runner_ms=round(sum(cause.ms for cause in causes), 3),
    )


def overlap_ms(one: tuple[float, float], other: tuple[float, float]) -> float:
    """How long two stretches of time, in seconds, have in common, in milliseconds."""
    return max(0.0, min(one[1], other[1]) - max(one[0], other[0])) * 1000

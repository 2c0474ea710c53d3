"""What became of each step: a record, and places that keep it.

A trace sink (see `protocols.TraceSink`) is told of every step when it ends, with its plan, its result and its times.
"""

from __future__ import annotations

from collections import deque
from typing import NamedTuple

from sluice.types import BatchPlan, BatchResult, Bound

KEPT_STEPS = 128
"""Some seconds of steps: enough to see what an engine is at."""


class StepTimes(NamedTuple):
    """When a step ran, in seconds of the engine's clock, and how long the engine was in the runner for it.

    A runner may compute at launch (cpu) or go on while nobody waits (cuda), so neither moment nor their difference is
    the step's cost once several steps are in flight. The two durations are: they never overlap those of another step.
    """

    launched_at: float
    ended_at: float
    """When its result was there; with several steps in flight this includes waiting for the ones before."""
    launch_seconds: float
    """In `Runner.launch`."""
    wait_seconds: float
    """In `Pending.wait`."""


class StepRecord(NamedTuple):
    """One step in numbers. Times are seconds of the engine's clock."""

    step: int
    rows: int
    tokens: int
    """All input tokens, one for each decode row."""
    decode_rows: int
    prefill_rows: int
    prefill_tokens: int
    bound_by: Bound
    """The limit that kept the step from holding more."""
    failed: bool
    launched_at: float
    ended_at: float
    """When its result was there; with several steps in flight this includes waiting for the ones before."""


def record_of(plan: BatchPlan, result: BatchResult | None, times: StepTimes) -> StepRecord:
    """The record of a step. A result of None means that it failed as a whole."""
    rows, decodes = len(plan.chunks), plan.num_decodes
    tokens = plan.num_tokens
    return StepRecord(
        step=plan.step,
        rows=rows,
        tokens=tokens,
        decode_rows=decodes,
        prefill_rows=rows - decodes,
        prefill_tokens=tokens - decodes,
        bound_by=plan.bound_by,
        failed=result is None,
        launched_at=times.launched_at,
        ended_at=times.ended_at,
    )


class NullTrace:
    """Keeps nothing."""

    latest: StepRecord | None = None

    def ended(self, plan: BatchPlan, result: BatchResult | None, times: StepTimes) -> None:
        pass

    def close(self) -> None:
        pass


class RecentSteps:
    """Keeps the records of the last steps.

    Args:
        keep: how many, at least 1.
    """

    def __init__(self, keep: int = KEPT_STEPS) -> None:
        if keep < 1:
            raise ValueError(f"keep must be at least 1, got {keep}")
        self._records: deque[StepRecord] = deque(maxlen=keep)

    @property
    def records(self) -> tuple[StepRecord, ...]:
        """Oldest first."""
        return tuple(self._records)

    @property
    def latest(self) -> StepRecord | None:
        return self._records[-1] if self._records else None

    def ended(self, plan: BatchPlan, result: BatchResult | None, times: StepTimes) -> None:
        self._records.append(record_of(plan, result, times))

    def close(self) -> None:
        """What was kept stays."""

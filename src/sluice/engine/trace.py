"""Trace sinks: they receive every step when it ends, with its plan, its result and its times."""

from __future__ import annotations

import logging
from collections import deque
from typing import NamedTuple, Protocol

from sluice.types import BatchPlan, BatchResult, Bound, Chunk, PredictedStep

LOGGER = logging.getLogger("sluice.engine")
WARN_AFTER = 16
"""Steps in a row: a machine that paused is no reason to warn."""
KEPT_STEPS = 128
"""Some seconds of steps: enough to see what an engine does."""


class StepTimes(NamedTuple):
    """When a step ran, in seconds of the engine's clock, and how long the engine was in the runner for it.

    A runner may compute at launch (cpu) or later (cuda), so neither moment nor their difference is the step's cost
    once several steps are in flight. The two durations are: they never overlap those of another step.
    """

    launched_at: float
    ended_at: float
    """When its result was there; with several steps in flight this includes waiting for the ones before."""
    launch_seconds: float
    """Time in `Runner.launch`."""
    wait_seconds: float
    """Time in `Pending.wait`."""
    micros: int = 0
    """What it added to the time between the tokens of a stream, in microseconds (`StepTimer`)."""


class StepRecord(NamedTuple):
    """One step in numbers. Times are seconds of the engine's clock."""

    step: int
    rows: int
    tokens: int
    """All input tokens: one for each decode row, those of prefill, and drafts."""
    decode_rows: int
    prefill_rows: int
    prefill_tokens: int
    bound_by: Bound
    """The limit that kept the step from holding more."""
    failed: bool
    launched_at: float
    ended_at: float
    """When its result was there; with several steps in flight this includes waiting for the ones before."""
    micros: int = 0
    """What it added to the time between the tokens of a stream, in microseconds."""
    pace: PredictedStep | None = None
    """What it was expected to take, if there is an ITL target."""
    drafted: int = 0
    """Drafts of its rows."""
    accepted: int = 0
    """Drafts that were accepted."""


def record_of(plan: BatchPlan, result: BatchResult | None, times: StepTimes) -> StepRecord:
    """Return the record of a step. A result of None means that it failed as a whole."""
    rows, decodes = len(plan.chunks), plan.num_decodes
    tokens, drafted = plan.num_tokens, plan.num_drafts
    return StepRecord(
        step=plan.step,
        rows=rows,
        tokens=tokens,
        decode_rows=decodes,
        prefill_rows=rows - decodes,
        prefill_tokens=tokens - decodes - drafted,
        bound_by=plan.bound_by,
        failed=result is None,
        launched_at=times.launched_at,
        ended_at=times.ended_at,
        micros=times.micros,
        pace=plan.pace,
        drafted=drafted,
        accepted=0 if result is None else sum(result.accepted),
    )


class TraceSink(Protocol):
    """Receives every step."""

    @property
    def latest(self) -> StepRecord | None:
        """The last step it received, if it keeps it."""
        ...

    def ended(self, plan: BatchPlan, result: BatchResult | None, times: StepTimes) -> None:
        """Receive a step that ended, before it is committed. Steps end in the order of their plans.

        Args:
            result: None if the step failed as a whole.
        """
        ...

    def close(self) -> None:
        """Write what is left: the engine steps no more. May be called again."""
        ...


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
        keep: number of steps, at least 1.
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
        """Keep the records."""


class PacingLog:
    """A trace sink in front of another one that warns once if the ITL target cannot be kept.

    Metrics and `/server_info` count these steps.
    """

    def __init__(self, inner: TraceSink) -> None:
        self._inner = inner
        self._infeasible = 0
        """Infeasible steps in a row."""
        self._has_warned = False

    @property
    def latest(self) -> StepRecord | None:
        return self._inner.latest

    def ended(self, plan: BatchPlan, result: BatchResult | None, times: StepTimes) -> None:
        if plan.pace is not None and not self._has_warned:
            self._infeasible = self._infeasible + 1 if plan.pace.is_infeasible else 0
            if self._infeasible == WARN_AFTER:
                self._has_warned = True
                self._warn(plan.pace, plan.num_decodes)
        self._inner.ended(plan, result, times)

    def _warn(self, pace: PredictedStep, rows: int) -> None:
        LOGGER.warning(
            "the ITL target of %.1f ms is infeasible: %d decodes with the smallest chunk take longer (%.1f ms are"
            " predicted); prefill goes on in such chunks (sluice:infeasible_steps_total counts these steps; this is"
            " logged once)",
            pace.target / 1000,
            rows,
            pace.predicted / 1000,
        )

    def close(self) -> None:
        self._inner.close()


class ChunkLog:
    """A trace sink in front of another one that logs a line for every chunk of a prompt that is cut.

        INFO sluice.engine: request 7: chunk 2 of its prompt in step 31: extend_len 512, from 1024, cached prefix 512

    All of it is in the plans: a new slot begins a prompt, the chunk that samples ends it.
    """

    def __init__(self, inner: TraceSink) -> None:
        self._inner = inner
        self._cut: dict[int, tuple[int, int]] = {}
        """Slot -> number of chunks so far and cached prefix of the prompt that is being computed there."""

    @property
    def latest(self) -> StepRecord | None:
        return self._inner.latest

    def ended(self, plan: BatchPlan, result: BatchResult | None, times: StepTimes) -> None:
        for new in plan.new_slots:
            self._cut.pop(new.slot, None)
        for chunk in plan.chunks[plan.num_decodes :]:
            self._log(plan, chunk)
        self._inner.ended(plan, result, times)

    def close(self) -> None:
        self._inner.close()

    def _log(self, plan: BatchPlan, chunk: Chunk) -> None:
        number, cached = self._cut.pop(chunk.slot, (0, chunk.start))
        is_last = chunk.samples or chunk.embeds
        if not is_last:
            self._cut[chunk.slot] = (number + 1, cached)
        elif number == 0:
            return  # whole in one chunk
        LOGGER.info(
            "request %d: chunk %d of its prompt in step %d: extend_len %d, from %d, cached prefix %d%s",
            chunk.request_id,
            number + 1,
            plan.step,
            chunk.length,
            chunk.start,
            cached,
            ", the last" if is_last else "",
        )

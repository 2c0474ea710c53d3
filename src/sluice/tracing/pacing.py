"""How the steps of a trace kept an ITL target, in numbers and as text."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from sluice.tracing.run import StepRun
from sluice.types import PredictedStep

LATE_BY = (0.0, 0.1, 0.25)
"""Shares of the target."""


@dataclass(frozen=True, slots=True)
class RegimeSummary:
    """Steps of one kind, and how long they were expected to take."""

    steps: int
    predicted_ms: float
    """Mean."""
    measured_ms: float
    """Mean."""
    error: float
    """Mean relative error of the predictions."""
    margin: float
    """Mean of the factor that was added for the quantile."""


@dataclass(frozen=True, slots=True)
class PacingSummary:
    """How a target was kept."""

    target_ms: float
    """Smallest target that a step had."""
    streaming: int
    """Steps with streams and a feasible target."""
    late: dict[str, int]
    """Steps that took longer than the target by more than a share of it."""
    infeasible: int
    """Steps whose decodes, with the smallest chunk if they hold prefill, were predicted to exceed the target."""
    regimes: dict[str, RegimeSummary]


def summarize_pace(steps: Iterable[StepRun]) -> PacingSummary | None:
    """Return how the steps kept their target; None if they had none, or none was timed."""
    timed = [(step, step.pace) for step in steps if step.pace is not None and step.micros > 0 and step.error is None]
    if not timed:
        return None
    streaming = [(step, pace) for step, pace in timed if step.num_decodes and pace.target and not pace.is_infeasible]
    kinds = dict.fromkeys(pace.regime for _, pace in timed)
    return PacingSummary(
        target_ms=min((pace.target for _, pace in timed if pace.target), default=0) / 1000,
        streaming=len(streaming),
        late={
            f"{share:.0%}": sum(step.micros > pace.target * (1 + share) for step, pace in streaming)
            for share in LATE_BY
        },
        infeasible=sum(pace.is_infeasible for _, pace in timed),
        regimes={str(kind): _regime([each for each in timed if each[1].regime is kind]) for kind in kinds},
    )


def _regime(timed: Sequence[tuple[StepRun, PredictedStep]]) -> RegimeSummary:
    count = len(timed)
    return RegimeSummary(
        steps=count,
        predicted_ms=round(math.fsum(pace.predicted for _, pace in timed) / count / 1000, 3),
        measured_ms=round(math.fsum(step.micros for step, _ in timed) / count / 1000, 3),
        error=round(math.fsum(abs(pace.predicted / step.micros - 1) for step, pace in timed) / count, 4),
        margin=round(math.fsum(pace.at_quantile / max(1, pace.predicted) for _, pace in timed) / count, 3),
    )


def report_pace(summary: PacingSummary | None) -> Iterator[str]:
    """Yield the lines of a summary; none without a target."""
    if summary is None:
        return
    late = ", ".join(f"{count} by more than {share}" for share, count in summary.late.items())
    yield f"ITL target of {summary.target_ms:g} ms, {summary.streaming} steps with streams; above it: {late}"
    if summary.infeasible:
        yield f"  infeasible, as decodes with the smallest chunk take longer: {summary.infeasible} steps"
    for name, own in summary.regimes.items():
        yield (
            f"  {name:<14} {own.steps:>7} steps: predicted {own.predicted_ms:.2f} ms,"
            f" measured {own.measured_ms:.2f} ms, error {own.error:.1%}, margin {own.margin:.2f}"
        )

"""Predicted against measured steps, from the trace of an engine with an ITL target."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from sluice.bench.plots import Point, scatter
from sluice.tracing.file import TraceReader
from sluice.tracing.pacing import report_pace, summarize_pace
from sluice.tracing.run import StepRun, read_run


def read_steps(path: Path) -> list[StepRun]:
    """Return the steps of a trace.

    Raises:
        TraceError: the file is no trace.
    """
    with TraceReader(path) as trace:
        return read_run(trace).steps


def pace_plot(steps: Sequence[StepRun]) -> str | None:
    """Return a plot of how long steps were predicted to take and how long they took; None if none was predicted."""
    points: dict[str, list[Point]] = {}
    for step in steps:
        if step.pace is not None and step.micros > 0 and step.error is None:
            points.setdefault(str(step.pace.regime), []).append((step.pace.predicted / 1000, step.micros / 1000))
    if not points:
        return None
    return scatter(
        name="predicted",
        title="Predicted and measured steps",
        description=". ".join(line.strip() for line in report_pace(summarize_pace(steps))) + ".",
        series=points,
        windows=(),
        x_label="predicted, ms",
        y_label="measured, ms",
    )

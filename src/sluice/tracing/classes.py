"""How the requests of a trace kept the TTFT targets of their priority classes, in numbers and as text."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from sluice.tracing.run import RequestRun, TracedRun
from sluice.tracing.spread import percentile
from sluice.types import DEFAULT_CLASS, PriorityClass, SchedulerLimits


@dataclass(frozen=True, slots=True)
class ClassSummary:
    """The requests of one class. Times are milliseconds."""

    target_ms: float
    requests: int
    first_tokens: int
    """Requests that had their first token from this engine."""
    on_time: int
    """Requests that had their first token within the target."""
    ttft_p50_ms: float | None
    ttft_p99_ms: float | None
    """Milliseconds; None if no request had a first token."""


def ttft_ms(request: RequestRun) -> float | None:
    """Return the time from a request's arrival to its first token, if it had that from this engine. The arrival is that
    at the server, where the trace knows it."""
    if not request.token_times or request.is_continued:
        return None
    arrived = request.added_at if request.arrived_at is None else request.arrived_at
    return round((request.token_times[0] - arrived) * 1000, 3)


def class_of(request: RequestRun, limits: SchedulerLimits) -> PriorityClass | None:
    """Return the class of a request; None if there are none."""
    name = request.priority_class or DEFAULT_CLASS
    return next((each for each in limits.classes if each.name == name), None)


def is_on_time(request: RequestRun, limits: SchedulerLimits) -> bool | None:
    """Return whether a request had its first token within its class's target; None without the one or the other."""
    its_class, ttft = class_of(request, limits), ttft_ms(request)
    return None if its_class is None or ttft is None else ttft * 1000 <= its_class.ttft_target


def summarize_classes(run: TracedRun, limits: SchedulerLimits) -> dict[str, ClassSummary]:
    """Return a summary of each class, by name; empty if requests were not ordered by deadline."""
    return {each.name: _summary(run, limits, each) for each in limits.classes}


def _summary(run: TracedRun, limits: SchedulerLimits, its_class: PriorityClass) -> ClassSummary:
    requests = [request for request in run.requests.values() if class_of(request, limits) is its_class]
    times = sorted(ttft for request in requests if (ttft := ttft_ms(request)) is not None)
    return ClassSummary(
        target_ms=its_class.ttft_target / 1000,
        requests=len(requests),
        first_tokens=len(times),
        on_time=sum(is_on_time(request, limits) is True for request in requests),
        ttft_p50_ms=percentile(times, 0.5) if times else None,
        ttft_p99_ms=percentile(times, 0.99) if times else None,
    )


def report_classes(classes: dict[str, ClassSummary]) -> Iterator[str]:
    """Yield the lines of the summaries; none without classes."""
    if classes:
        yield "first tokens by priority class:"
    for name, own in classes.items():
        shown = f"  {name:<12} {own.requests:>7} requests"
        if own.first_tokens:
            shown += (
                f": TTFT p50 {own.ttft_p50_ms:.1f} ms, p99 {own.ttft_p99_ms:.1f} ms;"
                f" {own.on_time} of {own.first_tokens} within {own.target_ms / 1000:g} s"
            )
        yield shown

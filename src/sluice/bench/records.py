"""What a measurement leaves: every request with the time of every token, and all that is needed to read it later.

Times are seconds after the run's start, on the client's clock. From these alone come table, report and comparison.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from sluice.bench.answers import Arrival, CountedBy, Failure


@dataclass(frozen=True, slots=True)
class Record:
    """One request."""

    session: int
    turn: int
    background: bool
    kind: str
    """short, long, or what an arrivals file says"""
    prompt_tokens: int
    """As the target counts them, else as planned."""
    max_tokens: int
    due: float
    """When it was to be sent: latencies count from here."""
    sent: float
    """When the client turned to it. `sent - due` is the client's own lateness, or the wait for a free place."""
    accepted: float | None
    ended: float
    arrivals: tuple[Arrival, ...]
    counted_by: CountedBy = CountedBy.EVENTS
    cached_tokens: int | None = None
    finish_reason: str | None = None
    failure: Failure | None = None

    @property
    def failed(self) -> bool:
        return self.failure is not None

    @property
    def num_tokens(self) -> int:
        return sum(arrival.tokens for arrival in self.arrivals)

    @property
    def first_token(self) -> float | None:
        return self.arrivals[0].at if self.arrivals else None

    @property
    def last_token(self) -> float | None:
        return self.arrivals[-1].at if self.arrivals else None


@dataclass(frozen=True, slots=True)
class Run:
    """One measurement."""

    started: str
    """Date and time, ISO 8601, UTC."""
    requests: tuple[Record, ...]
    lag: tuple[float, ...] = ()
    """Seconds by which the client's event loop woke up late, one value each 50 ms."""


@dataclass(frozen=True, slots=True)
class Result:
    """A result file. `settings` are the options as they came out; `target` says who was measured."""

    format: str
    settings: dict[str, dict[str, Any]]
    target: dict[str, Any]
    versions: dict[str, str]
    machine: dict[str, Any]
    runs: tuple[Run, ...]
    summaries: list[dict[str, Any]] = field(default_factory=list)
    """What `metrics.summarize` says of each run, for other readers of the file; ours compute it again."""


def served(target: Mapping[str, Any]) -> str:
    """The model, and by which other engine if one was started to be measured (`benchmarks/peers`)."""
    peer = target.get("peer")
    return f"{target['model']} by {peer['name']}" if isinstance(peer, dict) else str(target["model"])

"""What the server knows about its engine: for health checks, `/server_info` and `/metrics`."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from sluice.engine.meter import Histogram
from sluice.process.heartbeat import Reading

LOADING = "the model is loading"
RESUME_SECONDS: tuple[float, ...] = (0.5, 1.0, 2.0, 3.0, 5.0, 7.5, 10.0, 15.0, 20.0, 30.0, 60.0, 120.0, 300.0, 600.0)


@dataclass(slots=True)
class RecoveryStats:
    """Counts of recoveries since the server began."""

    restarts: int = 0
    """Engines started to replace one that died."""
    replayed_requests: int = 0
    """Requests sent to another engine, counted each time."""
    replayed_tokens: int = 0
    """Tokens of these that had been delivered before, and were computed again."""
    ended_requests: int = 0
    """Requests ended because an engine died while it worked on them alone."""
    to_resume: Histogram = field(default_factory=lambda: Histogram(RESUME_SECONDS))
    """Seconds from the notice of a death to the first token of a replayed request."""
    last_resume_seconds: float | None = None

    def resumed(self, seconds: float) -> None:
        """Count a recovery that is complete."""
        self.to_resume.add(seconds)
        self.last_resume_seconds = seconds

    def as_json(self) -> dict[str, Any]:
        return {
            "replayed_requests": self.replayed_requests,
            "replayed_tokens": self.replayed_tokens,
            "ended_requests": self.ended_requests,
            "last_resume_seconds": self.last_resume_seconds,
        }


@dataclass(slots=True)
class EngineState:
    """How the engine of a server is, whichever process it is at the moment."""

    status: str = LOADING
    """Why it does not serve; without meaning while it does."""
    pid: int | None = None
    """None while no engine serves."""
    is_serving: bool = False
    has_given_up: bool = False
    """No other engine will be started."""
    reading: Reading | None = None
    """The latest reading of its heartbeat."""
    silent_seconds: float = 0.0
    """Seconds without a tick, as of that reading."""
    stats: RecoveryStats = field(default_factory=RecoveryStats)

    def serving(self, pid: int) -> None:
        """Record that a process takes requests."""
        self.pid, self.is_serving = pid, True

    def away(self, status: str) -> None:
        """Record that no process takes requests, and why."""
        self.status, self.pid, self.is_serving, self.reading = status, None, False, None

    def as_json(self) -> dict[str, Any]:
        """Return what health checks show."""
        facts = {"pid": self.pid, "restarts": self.stats.restarts, "silent_seconds": round(self.silent_seconds, 1)}
        if self.reading is None:
            return facts
        _, phase, step, steps_done, tokens, *_ = self.reading
        return facts | {"phase": phase.name.lower(), "step": step, "steps_done": steps_done, "tokens": tokens}

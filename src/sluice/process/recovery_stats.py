"""What recoveries cost, counted: for `/server_info` and `/metrics`."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from sluice.engine.histogram import Histogram

RESUME_SECONDS: tuple[float, ...] = (0.5, 1.0, 2.0, 3.0, 5.0, 7.5, 10.0, 15.0, 20.0, 30.0, 60.0, 120.0, 300.0, 600.0)


@dataclass(slots=True)
class RecoveryStats:
    """Since the server began."""

    restarts: int = 0
    """Engines started in the place of one that died."""
    replayed_requests: int = 0
    """Requests sent to another engine, each time they were."""
    replayed_tokens: int = 0
    """Tokens of these that had been streamed already, and were computed again."""
    ended_requests: int = 0
    """Requests given up because an engine died of them alone."""
    to_resume: Histogram = field(default_factory=lambda: Histogram(RESUME_SECONDS))
    """Seconds from a death being noticed to the first token of a request that was replayed, where there was one."""
    last_resume_seconds: float | None = None
    """The latest of these."""

    def resumed(self, seconds: float) -> None:
        """A stream goes on."""
        self.to_resume.add(seconds)
        self.last_resume_seconds = seconds

    def as_json(self) -> dict[str, Any]:
        """By name."""
        return {
            "replayed_requests": self.replayed_requests,
            "replayed_tokens": self.replayed_tokens,
            "ended_requests": self.ended_requests,
            "last_resume_seconds": self.last_resume_seconds,
        }

"""How the engine stands, as the routes may tell: kept by whoever runs it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from sluice.process.heartbeat import Reading
from sluice.process.recovery_stats import RecoveryStats

LOADING = "the model is loading"


@dataclass(slots=True)
class EngineState:
    """The engine of a server, whichever process it is at the moment."""

    status: str = LOADING
    """Why it does not serve; not looked at while it does."""
    pid: int | None = None
    """None while no engine can be asked."""
    is_serving: bool = False
    has_given_up: bool = False
    """There will be no other engine."""
    reading: Reading | None = None
    """The latest look at its heartbeat."""
    silent_seconds: float = 0.0
    """Since a sign of life was seen, as of that look."""
    stats: RecoveryStats = field(default_factory=RecoveryStats)

    def serving(self, pid: int) -> None:
        """A process is there and takes requests."""
        self.pid, self.is_serving = pid, True

    def away(self, status: str) -> None:
        """No process takes requests."""
        self.status, self.pid, self.is_serving, self.reading = status, None, False, None

    def as_json(self) -> dict[str, Any]:
        """For health checks."""
        reading = self.reading
        progress = {} if reading is None else {"phase": reading.phase.name.lower()} | _numbers(reading)
        return {
            "pid": self.pid,
            "restarts": self.stats.restarts,
            "silent_seconds": round(self.silent_seconds, 1),
            **progress,
        }


def _numbers(reading: Reading) -> dict[str, int]:
    return {"step": reading.step, "steps_done": reading.landed, "tokens": reading.tokens}

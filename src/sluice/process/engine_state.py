"""What the server knows about its engine: for health checks, `/server_info` and `/metrics`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from sluice.engine.meter import Histogram
from sluice.process.heartbeat import Reading
from sluice.types import Tier

LOADING = "the model is loading"
SLEEPING = "sleeping"
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
class KvEventCounts:
    """Batches of KV events since the server began."""

    published: int = 0
    dropped: int = 0
    """Batches that found the queue full."""
    replayed: int = 0
    """Batches that were sent again to subscribers who asked."""


@dataclass(frozen=True, slots=True)
class Loading:
    """How far an engine is loaded."""

    reading: Reading
    """The latest reading of its heartbeat."""
    seconds: float
    """Seconds since its process was started."""
    seconds_left: float | None = None
    """Seconds until the present part ends, as far as that is known."""

    def __str__(self) -> str:
        left = "" if self.seconds_left is None else f", about {self.seconds_left:.0f} s left"
        return f"{self.reading.progress()}, {self.seconds:.0f} s so far{left}"

    def as_json(self) -> dict[str, Any]:
        part, done, total = self.reading.part.name.lower(), self.reading.loaded, self.reading.to_load
        left = None if self.seconds_left is None else round(self.seconds_left, 1)
        seconds = {"seconds": round(self.seconds, 1), "seconds_left": left}
        return {"part": part, "done": done, "total": total or None, **seconds}


@dataclass(slots=True)
class EngineState:
    """How the engine of a server is, whichever process it is at the moment."""

    status: str = LOADING
    """Why it does not serve; without meaning while it does."""
    pid: int | None = None
    """Process of the engine; None while no engine serves."""
    is_serving: bool = False
    is_refusing: bool = False
    """No engine can be started at the moment, so new requests are refused instead of waiting for one."""
    is_asleep: bool = False
    """There is no engine because none is needed, or because the server was put to sleep."""
    is_put_to_sleep: bool = False
    """It was asked to sleep until it is woken: no request begins, although some may still run."""
    has_given_up: bool = False
    """No other engine will be started."""
    disabled_tiers: Mapping[Tier, str] = field(default_factory=dict)
    """Tiers without which the latest engine was started, although the first one had them -> why."""
    reading: Reading | None = None
    """The latest reading of its heartbeat."""
    loading: Loading | None = None
    """How far the engine is loaded; None while no engine loads."""
    silent_seconds: float = 0.0
    """Seconds without a tick, as of that reading."""
    stats: RecoveryStats = field(default_factory=RecoveryStats)
    kv_events: KvEventCounts = field(default_factory=KvEventCounts)

    def serving(self, pid: int | None, disabled_tiers: Mapping[Tier, str]) -> None:
        """Record that a process takes requests; `pid` is None where it is one of several replicas."""
        self.pid, self.is_serving, self.is_refusing, self.is_asleep, self.loading = pid, True, False, False, None
        self.disabled_tiers = disabled_tiers

    def away(self, status: str) -> None:
        """Record that no process takes requests, and why."""
        self.status, self.pid, self.is_serving, self.reading, self.loading = status, None, False, None, None

    def asleep(self) -> None:
        """Record that there is no process, and that nothing is wrong."""
        self.away(SLEEPING)
        self.is_asleep = True

    def waking(self) -> None:
        """Record that a process is started after a sleep."""
        self.away("the engine is waking up")
        self.is_asleep = False

    def cannot_start(self, status: str) -> None:
        """Record that no other process can be started at the moment, and why."""
        self.away(status)
        self.is_refusing = True

    def give_up(self, status: str) -> None:
        """Record that no other process will be started, and why."""
        self.away(status)
        self.has_given_up = True

    def as_json(self) -> dict[str, Any]:
        """Return what health checks show."""
        facts = {"pid": self.pid, "restarts": self.stats.restarts, "silent_seconds": round(self.silent_seconds, 1)}
        if self.loading is not None:
            return facts | {"phase": "loading", "loading": self.loading.as_json()}
        if self.reading is None:
            return facts
        now = self.reading
        steps = {"step": now.step, "steps_done": now.steps_done, "tokens": now.tokens}
        return facts | {"phase": now.phase.name.lower()} | steps

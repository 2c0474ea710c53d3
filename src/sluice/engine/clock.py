"""Time as an object: the machine's, or one that a test or a simulation advances. The only module that reads time."""

from __future__ import annotations

import time
from typing import Protocol


class Clock(Protocol):
    """Seconds from some fixed moment."""

    def now(self) -> float: ...


class WallClock:
    """Monotonic time of this machine, the same in all its processes."""

    def now(self) -> float:
        return time.perf_counter()


def micros_at(seconds: float) -> int:
    """Return a moment of a clock in whole microseconds, as `Submit.arrived` counts them."""
    return round(seconds * 1e6)


class VirtualClock:
    """Time that passes when `advance` is called."""

    def __init__(self, start: float = 0.0) -> None:
        self._now = start

    def now(self) -> float:
        return self._now

    def advance(self, seconds: float) -> None:
        """Let time pass; it never goes back."""
        if seconds < 0:
            raise ValueError(f"time must not go backward, got {seconds} seconds")
        self._now += seconds

    def advance_to(self, moment: float) -> None:
        """Let time pass up to a moment; nothing happens if it is over."""
        self._now = max(self._now, moment)


class StepTimer:
    """Measures steps from the end of one to the end of the next, with planning and sending between them.

    With several steps in flight, the launches of others fall into that time, and on a cpu a launch computes. So they
    are taken out, and the step's own launch is added. All times are seconds of the engine's clock.

    Args:
        now: when the engine begins.
    """

    def __init__(self, now: float) -> None:
        self._since = now
        self._launching = 0.0
        """Seconds of launches since then."""

    def woke(self, now: float) -> None:
        """Note that nothing was in flight until now: the engine waited for work."""
        self._since, self._launching = now, 0.0

    def launched(self, seconds: float) -> None:
        """Note a launch, which took so long."""
        self._launching += seconds

    def ended(self, now: float, launch_seconds: float) -> int:
        """Return the microseconds of a step that ends now, at least 0."""
        seconds = now - self._since - self._launching + launch_seconds
        self._since, self._launching = now, 0.0
        return max(0, round(seconds * 1e6))

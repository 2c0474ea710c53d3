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

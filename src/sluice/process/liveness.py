"""Is the engine alive? Decided from readings of its heartbeat alone, by a clock that is handed in.

    no tick for `heartbeat_timeout`                    the thread is stuck, or stopped
    one wait for the device for `step_timeout`         the device is stuck
    idle, and counts of messages that do not meet      a message was lost

A step may take as long as it likes as long as it ticks. Loading a model is not watched here: it has a limit of its own.
"""

from __future__ import annotations

from dataclasses import dataclass

from sluice.engine.heartbeat import Phase
from sluice.process.heartbeat import Reading

LONGEST_LOOK = 1.0
"""Seconds that may pass between two looks. What is beyond them does not count: it was us who were not running."""


@dataclass(frozen=True, slots=True)
class Counts:
    """Messages as the server counts them."""

    sent: int
    received: int


class LivenessWatch:
    """Watches one engine.

    Args:
        heartbeat_timeout: seconds without a tick, or idle with a message missing, until it counts as dead.
        step_timeout: seconds of one wait for the device.
        now: seconds of any clock, when it began.
    """

    def __init__(self, heartbeat_timeout: float, step_timeout: float, now: float) -> None:
        self._heartbeat_timeout = heartbeat_timeout
        self._step_timeout = step_timeout
        self._looked_at = now
        self._ticks = -1
        self._wait: int | None = None
        """Steps landed when the wait for the device began that still goes on."""
        self.silent = 0.0
        """Seconds since a tick was seen."""
        self._waited = 0.0
        self._missing = 0.0

    def look(self, reading: Reading, counts: Counts, now: float) -> str | None:
        """What is wrong, in words that follow "the engine"; None if nothing is."""
        passed = min(now - self._looked_at, LONGEST_LOOK)
        self._looked_at = now
        if reading.phase is Phase.LOADING:
            return None
        wait = reading.landed if reading.phase is Phase.DEVICE else None
        self.silent = 0.0 if reading.ticks != self._ticks else self.silent + passed
        self._waited = self._waited + passed if wait is not None and wait == self._wait else 0.0
        is_missing = reading.phase is Phase.IDLE and (reading.received, reading.sent) != (counts.sent, counts.received)
        self._missing = self._missing + passed if is_missing else 0.0
        self._ticks, self._wait = reading.ticks, wait
        return self._verdict(reading, counts)

    def _verdict(self, reading: Reading, counts: Counts) -> str | None:
        if self.silent >= self._heartbeat_timeout:
            at = reading.phase.name.lower()
            return f"gave no sign of life for {self.silent:.1f} s in step {reading.step} ({at}) and was ended"
        if self._waited >= self._step_timeout:
            return f"waited {self._waited:.1f} s for step {reading.step} (--step-timeout) and was ended"
        if self._missing >= self._heartbeat_timeout:
            return (
                f"lost a message and was ended: it received {reading.received} of {counts.sent},"
                f" {counts.received} of {reading.sent} came from it"
            )
        return None

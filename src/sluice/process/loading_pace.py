"""How long a part of loading will still take, by how fast it went so far."""

from __future__ import annotations

from sluice.engine.heartbeat import LoadingPart
from sluice.process.heartbeat import Reading

MIN_SECONDS = 0.5
"""Seconds that a part must have taken before its end is estimated."""


class LoadingPace:
    """Estimates from readings of one engine that loads."""

    def __init__(self) -> None:
        self._part: LoadingPart | None = None
        self._began = 0.0
        self._at_begin = 0

    def seconds_left(self, reading: Reading, now: float) -> float | None:
        """Return the seconds until the present part ends; None: that is not known yet.

        Args:
            now: seconds of any clock.
        """
        if reading.part is not self._part:
            self._part, self._began, self._at_begin = reading.part, now, reading.loaded
        passed, done = now - self._began, reading.loaded - self._at_begin
        if passed < MIN_SECONDS or done <= 0 or not reading.to_load:
            return None
        return passed * (reading.to_load - reading.loaded) / done

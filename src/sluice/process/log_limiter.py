"""Limits how often something that may happen often is logged."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable


class LogLimiter:
    """Allows a message at most once in some seconds, and counts what happens in between.

    Args:
        seconds: between two messages.
        clock: returns seconds.
    """

    def __init__(self, seconds: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._seconds = seconds
        self._clock = clock
        self._due = clock()
        self._count = 0

    def count(self) -> int:
        """Count what has happened now. Return how often it has since the last message, or 0 if none is due yet."""
        self._count += 1
        now = self._clock()
        if now < self._due:
            return 0
        counted, self._count, self._due = self._count, 0, now + self._seconds
        return counted

    def warn(self, logger: logging.Logger, what: str) -> None:
        """Count what has happened now, and log it as a warning if a message is due."""
        if count := self.count():
            times = f" ({count} times since the last message)" if count > 1 else ""
            logger.warning("%s%s", what, times)

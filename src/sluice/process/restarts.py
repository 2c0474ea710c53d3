"""When an engine may be started again: how often, after which pause, and with which file descriptors."""

from __future__ import annotations

import os
import random
from collections import deque
from collections.abc import Callable

RESTART_WINDOW = 600.0
"""Seconds in which restarts are counted."""
START_DESCRIPTORS = 24
"""Descriptors for a start: it opens 14 at once, and some versions of Python and libzmq a few more."""


class RestartBudget:
    """Limits how often an engine is restarted.

    Args:
        limit: restarts within the window; 0 allows none.
        window: seconds.
    """

    def __init__(self, limit: int, window: float = RESTART_WINDOW) -> None:
        self._limit = limit
        self._window = window
        self._spent: deque[float] = deque()

    def spend(self, now: float) -> bool:
        """Count a restart and return True, or return False if none is left."""
        while self._spent and now - self._spent[0] > self._window:
            self._spent.popleft()
        if len(self._spent) >= self._limit:
            return False
        self._spent.append(now)
        return True


class Backoff:
    """Pauses between attempts: none before the first, then twice as long each time, up to a limit.

    Each pause is drawn between half of its length and all of it, so that servers that failed together do not all try
    again at the same moment.

    Args:
        first: length of the first pause, in seconds.
        longest: limit of the length, in seconds.
        draw: returns a random number from 0 to 1.
    """

    def __init__(self, first: float, longest: float, draw: Callable[[], float] = random.random) -> None:
        self._first = first
        self._longest = longest
        self._draw = draw
        self._length = 0.0

    def next(self) -> float:
        """Return the seconds to wait before the next attempt."""
        length = self._length
        self._length = min(max(self._first, 2 * length), self._longest)
        return length * (1 + self._draw()) / 2

    def reset(self) -> None:
        """Begin again: the last attempt succeeded."""
        self._length = 0.0


class DescriptorReserve:
    """File descriptors held for the start of an engine, so that connections cannot use up all of them.

    Args:
        count: descriptors to hold.
    """

    def __init__(self, count: int = START_DESCRIPTORS) -> None:
        self._count = count
        self._held: list[int] = []

    def fill(self) -> None:
        """Hold the full count. If there are too few, those that there are stay held.

        Raises:
            OSError: there are too few, in the process (EMFILE) or in the system (ENFILE).
        """
        while len(self._held) < self._count:
            self._held.append(os.open(os.devnull, os.O_RDONLY))

    def release(self) -> None:
        """Give them up, for a start or at the end."""
        while self._held:
            os.close(self._held.pop())

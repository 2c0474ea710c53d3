"""How fast requests get their turn, and so when one that was refused should come back."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable

WINDOW = 64
"""Beginnings that the pace is measured over: about a batch."""
LONGEST_SECONDS = 60


class Pace:
    """Counts the requests that wait for their first token and times those that get it.

    The pace is that of the latest beginnings since the server was last without a waiting request: what was before says
    nothing about a queue that stands now.

    Args:
        clock: seconds from some fixed moment.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._moments: deque[float] = deque(maxlen=WINDOW + 1)
        """When the busy time began, and then each beginning in it."""
        self.waiting = 0

    def came(self) -> None:
        """A request waits from now on."""
        if self.waiting == 0:
            self._moments.clear()
            self._moments.append(self._clock())
        self.waiting += 1

    def began(self) -> None:
        """A waiting request got its first token."""
        self.waiting -= 1
        self._moments.append(self._clock())

    def left(self) -> None:
        """A waiting request ended without one."""
        self.waiting -= 1

    def retry_after(self) -> int:
        """Seconds in which the requests that wait now will have begun, at the pace there is: from 1 to
        `LONGEST_SECONDS`. With no beginning yet, as if the next one came now."""
        if not self._moments:
            return 1
        seconds_each = (self._clock() - self._moments[0]) / max(1, len(self._moments) - 1)
        return min(max(1, math.ceil(self.waiting * seconds_each)), LONGEST_SECONDS)

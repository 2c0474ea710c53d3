"""How fast waiting requests start, and from that when a refused one should be sent again."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable

RATE_WINDOW = 64
"""Number of latest request starts that `StartRate` measures: about one batch."""
MAX_RETRY_SECONDS = 60


class StartRate:
    """How fast waiting requests start, and from that when a refused one should be sent again.

    The rate is measured over the latest starts since the queue was last empty.

    Args:
        clock: seconds from some fixed moment.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._moments: deque[float] = deque(maxlen=RATE_WINDOW + 1)
        """When the queue stopped being empty, then each start since."""
        self.waiting = 0
        """Requests without a first token."""

    def arrived(self) -> None:
        """Count a new request."""
        if self.waiting == 0:
            self._moments.clear()
            self._moments.append(self._clock())
        self.waiting += 1

    def started(self) -> None:
        """Count the first token of a waiting request."""
        self.waiting -= 1
        self._moments.append(self._clock())

    def left(self) -> None:
        """Count a waiting request that ended without a token."""
        self.waiting -= 1

    def retry_after(self) -> int:
        """Return the seconds until all waiting requests have started at the present rate, from 1 to
        `MAX_RETRY_SECONDS`. Before the first start, assume that it happens now."""
        if not self._moments:
            return 1
        seconds_each = (self._clock() - self._moments[0]) / max(1, len(self._moments) - 1)
        return min(max(1, math.ceil(self.waiting * seconds_each)), MAX_RETRY_SECONDS)

"""Pace: how far the work on a chunk may go in a step, and how long it may wait for what it reads.

A chunk that has done the units it was granted pauses until the next part; so does one whose next block does not come.
What it was granted stays granted: the next part begins with what is left, and no neighbour waits for a disk.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from sluice.runner.offload.coroutine import may_not_pause

BYTES_PER_SECOND = 2e9
"""That a disk is planned with. A step beside others may wait as long as its loads would take then: so much is paid."""
PATIENCE, ALONE_PATIENCE = 0.001, 0.1
"""Seconds that a step may wait for blocks, beside others besides, and when only those would wait who come meanwhile."""
GIVE_UP = 30.0
"""Seconds after which a block that was waited for will not come."""


class BlockTooLate(Exception):
    """A block did not come."""


class Pace:
    """Of one chunk.

    Args:
        clock: seconds.
    """

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self._clock = clock
        self._begun = 0
        self.granted = 0
        """Units, from the chunk's beginning."""
        self._waits_until = 0.0
        self._is_waiting = False
        self.pause: Callable[[], None] = may_not_pause
        """Puts the chunk down until somebody takes it up again."""

    @property
    def unfinished(self) -> int:
        """Units that were granted and are not done, while the chunk is put down."""
        return self.granted - self._begun + self._is_waiting

    def grant(self, units: int, seconds: float) -> None:
        """It may do so many units more, and wait so long for what they read."""
        self.granted += units
        self._waits_until = self._clock() + seconds

    def begin_unit(self) -> None:
        """One more unit of work; pauses until it may be done."""
        while self._begun == self.granted:
            self.pause()
        self._begun += 1

    def wait_until(self, has_come: Callable[[float], bool]) -> None:
        """Wait for what the unit reads; pauses when the step has waited long enough.

        Args:
            has_come: waits so many seconds at most.

        Raises:
            BlockTooLate: it does not come.
        """
        if has_come(0.0):
            return
        gives_up = self._clock() + GIVE_UP
        self._is_waiting = True
        while not has_come(max(0.0, min(self._waits_until, gives_up) - self._clock())):
            if self._clock() >= gives_up:
                raise BlockTooLate(f"what it reads did not come from the disk in {GIVE_UP:.0f} s")
            if self._clock() >= self._waits_until:
                self.pause()
        self._is_waiting = False

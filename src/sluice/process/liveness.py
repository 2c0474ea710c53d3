"""Decides from readings of an engine's heartbeat, by a clock that is handed in, that the engine is dead.

While it loads (`LoadingWatch`):

    no progress for `progress_timeout`                         the process hangs or was stopped (only on Linux)

When it is ready (`LivenessWatch`):

    no tick for `heartbeat_timeout`, and no computing          the thread hangs or was stopped; if it is idle, whatever
                                                               other threads compute
    no tick for `step_timeout`                                 the computation hangs
    one wait for the device for `step_timeout`                 the device hangs

A step may take any time while it ticks. A call of compiled code may take longer than `heartbeat_timeout`, one layer of
a long prompt for example. It does not tick, but the operating system shows that its process computes (`activity`). It
also shows that the thread could run and waits for a processor, as where a machine has too much to do.
"""

from __future__ import annotations

from collections.abc import Callable

from sluice.engine.heartbeat import Phase
from sluice.process.activity import Activity
from sluice.process.heartbeat import Reading

MAX_LOOK_SECONDS = 1.0
"""Time between two looks that counts. If more passed, the server itself was not running."""

GetActivity = Callable[[], Activity | None]
"""Returns the activity of a process, or None if the system does not say."""


def unknown() -> None:
    """Return that the activity of a process is unknown."""


class LivenessWatch:
    """Decides whether one engine is alive.

    Args:
        heartbeat_timeout: seconds without a tick after which the engine is dead.
        step_timeout: the longest wait for the device, and the longest computation without a tick, in seconds.
        now: the present time, in seconds of any clock.
    """

    def __init__(self, heartbeat_timeout: float, step_timeout: float, now: float) -> None:
        self._heartbeat_timeout = heartbeat_timeout
        self._step_timeout = step_timeout
        self._looked_at = now
        self._ticks = -1
        self._activity: Activity | None = None
        self._waits_after: int | None = None
        """Steps done when the engine's current wait for the device began; None: it does not wait."""
        self.silent = 0.0
        """Seconds since a tick was seen."""
        self._still = 0.0
        """Seconds since a tick, a computation or a wait for a processor was seen."""
        self._waited = 0.0
        """Seconds of the present wait for the device."""

    def look(self, reading: Reading, now: float, activity: GetActivity = unknown) -> str | None:
        """Return why the engine counts as dead, in words that follow "the engine", or None if it is alive.

        Args:
            activity: returns that of its process. It is called only if the engine is silent.
        """
        passed = min(now - self._looked_at, MAX_LOOK_SECONDS)
        is_silent = reading.ticks == self._ticks
        found = activity() if is_silent else None
        may_compute = reading.phase is not Phase.IDLE
        runs = _runs(self._activity, found, now - self._looked_at, may_compute=may_compute)
        self._looked_at, self._activity = now, found
        waits_after = reading.steps_done if reading.phase is Phase.DEVICE else None
        is_same_wait = waits_after is not None and waits_after == self._waits_after
        self.silent = self.silent + passed if is_silent else 0.0
        self._still = self._still + passed if is_silent and not runs else 0.0
        self._waited = self._waited + passed if is_same_wait else 0.0
        self._ticks, self._waits_after = reading.ticks, waits_after
        return self._verdict(reading)

    def _verdict(self, reading: Reading) -> str | None:
        phase = reading.phase.name.lower()
        if self._still >= self._heartbeat_timeout:
            return f"sent no heartbeat for {self.silent:.1f} s in step {reading.step} ({phase}) and was killed"
        if self._waited >= self._step_timeout:
            return f"waited {self._waited:.1f} s for step {reading.step} (--step-timeout) and was killed"
        if self.silent >= self._step_timeout:
            return (
                f"computed for {self.silent:.1f} s without a heartbeat in step {reading.step} ({phase},"
                " --step-timeout) and was killed"
            )
        return None


class LoadingWatch:
    """Decides whether an engine that loads makes progress: it reports some, or its process computes, reads or writes.

    Args:
        timeout: seconds without progress after which it hangs.
        now: the present time, in seconds of any clock.
    """

    def __init__(self, timeout: float, now: float) -> None:
        self._timeout = timeout
        self._looked_at = now
        self._reading: Reading | None = None
        self._activity: Activity | None = None
        self._still = 0.0
        """Seconds since progress was seen."""

    def look(self, reading: Reading, now: float, activity: GetActivity = unknown) -> str | None:
        """Return how the engine hangs, in words that follow "the engine", or None if it makes progress.

        Args:
            activity: returns that of its process. It is called only if the engine reports no progress.
        """
        passed, before = now - self._looked_at, self._activity
        found = activity() if reading == self._reading else None
        # Where the system does not say what the process does, a part without reports may take any time.
        is_known = found is not None and before is not None
        is_still = is_known and not _runs(before, found, passed) and not _reads_or_writes(before, found)
        self._looked_at, self._reading, self._activity = now, reading, found
        self._still = self._still + min(passed, MAX_LOOK_SECONDS) if is_still else 0.0
        if self._still < self._timeout:
            return None
        return f"made no progress for {self._still:.1f} s while it loaded (--progress-timeout): {reading.progress()}"


def _runs(earlier: Activity | None, activity: Activity | None, seconds: float, *, may_compute: bool = True) -> bool:
    """Return whether a process waits for a processor, or computes, if it may."""
    if earlier is None or activity is None:
        return False
    return activity.queues_since(earlier, seconds) or (may_compute and activity.computes_since(earlier, seconds))


def _reads_or_writes(earlier: Activity | None, activity: Activity | None) -> bool:
    return earlier is not None and activity is not None and activity.io != earlier.io

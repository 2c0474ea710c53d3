"""StepTimer: what each step adds to the time between the tokens of a stream."""

from __future__ import annotations


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

"""Heartbeats of streams: while no token comes, a client and the proxies before it see that the answer continues.

A prompt of a million tokens is read for twenty minutes, and proxies close connections that are silent for one. A timer
serves all streams, so that a token costs no timer of its own.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

SILENT_SECONDS = 5.0
"""Seconds without a byte to a client, after which it gets a heartbeat. Until then a failure has a status of its own."""
PROGRESS_SECONDS = 1.0
"""`SILENT_SECONDS` for a client that asks for the progress of its prompt."""
TICK_SECONDS = 0.5
"""Seconds between two looks at the streams."""


class Silence:
    """How long nothing was sent in one stream.

    Args:
        wake: called when a heartbeat is due, and again until the silence is broken.
        now: seconds.
        every: seconds between heartbeats.
    """

    __slots__ = ("every", "is_due", "since", "wake")

    def __init__(self, wake: Callable[[], None], now: float, every: float) -> None:
        self.every = every
        """Seconds without a byte after which a heartbeat is due."""
        self.wake = wake
        self.since = now
        """When something was sent last; before that, when the call began."""
        self.is_due = False
        """A heartbeat is to be sent."""


class Heartbeats:
    """Wakes the streams in which nothing was sent for a while.

    Args:
        clock: seconds.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._open: set[Silence] = set()
        self._timer: asyncio.TimerHandle | None = None

    @contextmanager
    def watch(self, wake: Callable[[], None], every: float = SILENT_SECONDS) -> Iterator[Silence]:
        """Watch a stream inside the `with`.

        Args:
            wake: lets the stream look at `Silence.is_due`.
            every: seconds between heartbeats.
        """
        silence = Silence(wake, self._clock(), every)
        self._open.add(silence)
        self._set_timer()
        try:
            yield silence
        finally:
            self._open.discard(silence)

    def sent(self, silence: Silence) -> None:
        """Note that something is sent in a stream."""
        silence.since, silence.is_due = self._clock(), False

    @property
    def is_resting(self) -> bool:
        """Whether there is no stream to watch, and no timer."""
        return not self._open and self._timer is None

    def beat(self) -> None:
        """Wake the streams that have been silent for too long. The timer calls it."""
        now = self._clock()
        for silence in self._open:
            if now - silence.since >= silence.every:
                silence.is_due = True
                silence.wake()

    def _tick(self) -> None:
        self._timer = None
        self.beat()
        self._set_timer()

    def _set_timer(self) -> None:
        if self._open and self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(TICK_SECONDS, self._tick)

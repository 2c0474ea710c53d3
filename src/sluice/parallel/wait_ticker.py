"""WaitTicker: shows that a thread lives while it waits for other ranks in a call of torch."""

from __future__ import annotations

import threading
from collections.abc import Callable

TICK_SECONDS = 0.5
"""Between two ticks of one wait. The first comes so long after its beginning, or up to twice as long."""


class WaitTicker:
    """Calls `tick` while the body of a `with` takes long, and at no other time. Bodies do not overlap.

    A thread of its own calls it. The waiting thread cannot: a wait of gloo to receive that times out closes the group's
    connections, and until it is waited for, gloo does not say whether a tensor has come.

    Args:
        tick: shows that the thread of the body lives. An error ends the ticks.
        seconds: between two ticks.
    """

    def __init__(self, tick: Callable[[], None], seconds: float = TICK_SECONDS) -> None:
        self._tick = tick
        self._seconds = seconds
        self._lock = threading.Lock()
        self._entered = 0
        self._is_inside = False
        self._closed = threading.Event()
        threading.Thread(target=self._run, name="tick-in-waits", daemon=True).start()

    def __enter__(self) -> None:
        with self._lock:
            self._entered += 1
            self._is_inside = True

    def __exit__(self, *_: object) -> None:
        with self._lock:  # no tick comes after the body, when the thread may show what else it does
            self._is_inside = False

    def close(self) -> None:
        """End the ticks. May be called again."""
        self._closed.set()

    def _run(self) -> None:
        seen = 0
        while not self._closed.wait(self._seconds):
            with self._lock:
                if self._is_inside and self._entered == seen:
                    self._tick()
                seen = self._entered

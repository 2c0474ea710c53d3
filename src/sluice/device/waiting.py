"""Waiting for a device without falling silent."""

from __future__ import annotations

import time
from collections.abc import Callable

TICK_SECONDS = 1.0
"""Between two signs of life."""
SPIN_SECONDS = 0.05
"""How long a step is waited for without a pause: as long as most take. After that `NAP_SECONDS` more are little."""
NAP_SECONDS = 0.0005


def noop() -> None:
    """Tells nobody."""


def wait_until(is_done: Callable[[], bool], tick: Callable[[], None]) -> None:
    """Return when it is done; tick at the beginning and every second until then."""
    began = ticked = time.monotonic()
    tick()
    while not is_done():
        now = time.monotonic()
        if now - ticked >= TICK_SECONDS:
            ticked = now
            tick()
        time.sleep(0 if now - began < SPIN_SECONDS else NAP_SECONDS)

"""How a server is told to end, and how it ends what runs.

SIGTERM   finish what runs, begin nothing new, then end
SIGINT    (Ctrl-C) end now: what runs is cut off with an error that says so
a second  end at once
"""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Collection
from typing import Any


class StopSignals:
    """The signals that a process was sent; to be made in the event loop."""

    def __init__(self) -> None:
        self.drain = asyncio.Event()
        """Finish what runs."""
        self.stop = asyncio.Event()
        """End."""
        self.hurry = asyncio.Event()
        """Wait for nothing."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, self.received, number)

    def received(self, number: signal.Signals) -> None:
        """A signal came."""
        if self.drain.is_set() or self.stop.is_set():
            self.hurry.set()
            self.stop.set()
        elif number is signal.SIGTERM:
            self.drain.set()
        else:
            self.stop.set()


async def finish(work: Collection[asyncio.Task[None]], unless: Collection[asyncio.Task[Any]], seconds: float) -> None:
    """Wait until all work is done, at most this long, and not once something else has happened."""
    if not work:
        return
    done = asyncio.create_task(asyncio.wait(work))
    await asyncio.wait({done, *unless}, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
    done.cancel()

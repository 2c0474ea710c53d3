"""The client's time. A parameter, so that tests measure exact times without waiting."""

from __future__ import annotations

import asyncio
import time
from typing import Protocol


class Timer(Protocol):
    """Seconds from some fixed moment, and waiting for a later one."""

    def now(self) -> float: ...

    async def until(self, moment: float) -> None:
        """Return at or after this moment; at once if it is over."""
        ...


class WallTimer:
    """Monotonic time of this machine. Waits end up to 1 ms late: the clock of the event loop's selector ticks so."""

    def now(self) -> float:
        return time.perf_counter()

    async def until(self, moment: float) -> None:
        await asyncio.sleep(max(0.0, moment - self.now()))


class Lag:
    """How late the client's event loop wakes up: while it does, arrivals are seen late by as much.

    Used as `async with`; afterwards `seconds` holds one value for each wake-up, `interval` apart.
    """

    def __init__(self, timer: Timer, interval: float = 0.05) -> None:
        self.seconds: list[float] = []
        self._timer = timer
        self._interval = interval
        self._task: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Lag:
        self._task = asyncio.create_task(self._watch())
        return self

    async def __aexit__(self, *error: object) -> None:
        assert self._task is not None
        self._task.cancel()
        await asyncio.wait({self._task})

    async def _watch(self) -> None:
        while True:
            due = self._timer.now() + self._interval
            await self._timer.until(due)
            self.seconds.append(self._timer.now() - due)

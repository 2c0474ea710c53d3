"""When a server has no engine although nothing failed: put to sleep by its administrator, or for want of requests.

A sleeping server has no engine process, so all its memory is free. It wakes up by starting another engine.

    awake --asked, and no request is open--> asleep --woken-----------------> awake
    awake --idle for long enough-----------> asleep --woken, or a request---> awake
"""

from __future__ import annotations

import asyncio

from sluice.process.client import EngineClient
from sluice.process.engine_state import EngineState

PUT_TO_SLEEP = "the server was put to sleep; POST /wake_up wakes it"


class Sleep:
    """Says when the engine is to be ended, and when another one is to be started.

    One task asks (the supervisor's), by `due` and `over`. All methods are called in the event loop.

    Args:
        client: whose open requests keep the engine awake.
        state: records what was asked.
        idle_seconds: without a request, after which the engine sleeps until the next one; None: never.
    """

    def __init__(self, client: EngineClient, state: EngineState, idle_seconds: float | None = None) -> None:
        self._client = client
        self._state = state
        self._idle_seconds = idle_seconds
        self._is_woken = self._is_down = False
        self.takes_new_weights = False
        """The engine that is started next may have other weights than the one before: nothing began with those."""
        self._changed = asyncio.Event()
        """Set, and replaced, at each turn of what `until_asleep` and `until_awake` wait for."""

    def ask(self) -> None:
        """Let the engine sleep as soon as no request is open, until `wake`."""
        self._state.is_put_to_sleep, self._is_woken = True, False
        self._client.changed.set()
        self.announce()

    def wake(self, *, new_weights: bool = False) -> None:
        """Let an engine be started, if none is there, and requests begin.

        Args:
            new_weights: whether the model's files may have changed while the engine slept.
        """
        self.takes_new_weights = new_weights and self._is_down
        self._state.is_put_to_sleep, self._is_woken = False, True
        self._client.changed.set()
        self.announce()

    def announce(self) -> None:
        """Let those who wait look at the state again."""
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()

    async def until_asleep(self) -> None:
        """Wait until the engine's process is gone, or the server was woken before, or it has given up."""
        while self._state.is_put_to_sleep and not (self._is_down or self._state.has_given_up):
            await self._changed.wait()

    async def until_awake(self) -> None:
        """Wait until an engine serves, or the server was put to sleep before, or it has given up."""
        while not (self._state.is_serving or self._state.is_put_to_sleep or self._state.has_given_up):
            await self._changed.wait()

    def is_due(self) -> bool:
        """Return whether the engine is to be ended now."""
        left = self._seconds_left()
        return self._client.num_open == 0 and (self._state.is_put_to_sleep or (left is not None and left <= 0))

    def fell_asleep(self) -> None:
        """Note that the engine's process has ended."""
        self._is_down = True
        self.announce()

    async def due(self) -> None:
        """Wait until the engine is to be ended."""
        while not self.is_due():
            await self._change(self._seconds_left())
        self._is_woken = False

    async def over(self) -> None:
        """Wait until an engine is needed."""
        while self._state.is_put_to_sleep or not (self._is_woken or self._client.num_open):
            await self._change(None)
        self._is_down = False

    async def _change(self, seconds: float | None) -> None:
        """Wait until a request came, the last one ended, or something was asked; at most so many seconds."""
        try:
            async with asyncio.timeout(seconds):
                await self._client.changed.wait()
        except TimeoutError:
            return
        self._client.changed.clear()

    def _seconds_left(self) -> float | None:
        """Return the seconds until the server has been idle for long enough; None if that is not in sight."""
        since = self._client.idle_since
        if self._idle_seconds is None or since is None:
            return None
        return since + self._idle_seconds - self._client.now()

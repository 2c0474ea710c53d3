"""Keeps an engine running: starts it, notices its end, starts another one, and gives up when that does not help.

    loading --ready--> serving --died or stuck--> starting another --ready--> serving ...
       |                                             |
       +--cannot start: an error for the user        +--too many in RESTART_WINDOW: gave up

What requests go through meanwhile is the client's affair (`client`); who is to blame, `quarantine`'s.
"""

from __future__ import annotations

import logging
import time
from collections import deque

from sluice.process.client import EngineClient
from sluice.process.engine_state import EngineState
from sluice.process.heartbeat import Reading
from sluice.process.launch import EngineProcess, EngineStartError, Launcher
from sluice.process.wire import Ready

LOGGER = logging.getLogger("sluice.server")
RESTART_WINDOW = 600.0
"""Seconds in which restarts are counted."""


class RestartBudget:
    """How often an engine may be started again.

    Args:
        limit: restarts within the window; 0 is none at all.
        window: seconds.
    """

    def __init__(self, limit: int, window: float = RESTART_WINDOW) -> None:
        self._limit = limit
        self._window = window
        self._spent: deque[float] = deque()

    def spend(self, now: float) -> bool:
        """Count a restart, if there is one left."""
        while self._spent and now - self._spent[0] > self._window:
            self._spent.popleft()
        if len(self._spent) >= self._limit:
            return False
        self._spent.append(now)
        return True


class Supervisor:
    """Runs the engines of one server, one after the other.

    Args:
        launcher: starts them.
        client: is told of their coming and going.
        state: is kept up to date.
        max_restarts: see `RestartBudget`.
    """

    def __init__(self, launcher: Launcher, client: EngineClient, state: EngineState, max_restarts: int) -> None:
        self._launcher = launcher
        self._client = client
        self._state = state
        self._budget = RestartBudget(max_restarts)
        self._max_restarts = max_restarts
        self._epoch = 0
        self._engine: EngineProcess | None = None

    async def start(self) -> Ready:
        """Start the first engine.

        Raises:
            EngineStartError: it cannot be started.
        """
        engine, ready = await self._start()
        self._launcher = self._launcher.after(ready)
        self._serve(engine)
        return ready

    async def run(self) -> str:
        """Keep the started engine, or another one, running. Returns why that is given up."""
        while True:
            how = await self._outlive()
            while True:
                if not self._budget.spend(time.monotonic()):
                    return self._give_up(how)
                LOGGER.warning("%s; starting another one", how)
                self._state.stats.restarts += 1
                self._epoch += 1
                try:
                    engine, _ = await self._start()
                except EngineStartError as error:
                    how = str(error)
                    self._state.away(f"{how}; another one is started")
                else:
                    self._serve(engine)
                    break

    async def close(self, *, at_once: bool = False) -> None:
        """End the engine, if one runs. No other is started, since whoever calls this has cancelled `run`."""
        engine, self._engine = self._engine, None
        if engine is not None:
            await engine.close(at_once=at_once)

    async def _start(self) -> tuple[EngineProcess, Ready]:
        self._engine = engine = await self._launcher.spawn(self._epoch)
        try:
            return engine, await engine.ready()
        except EngineStartError:
            await self.close()
            raise

    def _serve(self, engine: EngineProcess) -> None:
        self._state.serving(engine.pid)
        self._client.attach(engine.send, engine.epoch)

    async def _outlive(self) -> str:
        """Serve with the engine until it ends. Returns how it did."""
        engine = self._engine
        assert engine is not None, "no engine was started"
        how = await engine.run(self._client.deliver, self._looked)
        self._state.away(f"the engine {how}; another one is started")
        self._client.detach(how, engine.in_flight())
        await self.close()
        return f"the engine {how}"

    def _looked(self, reading: Reading, silent_seconds: float) -> None:
        self._state.reading, self._state.silent_seconds = reading, silent_seconds

    def _give_up(self, how: str) -> str:
        self._state.has_given_up = True
        limit = f"{self._max_restarts} restarts in {RESTART_WINDOW / 60:g} minutes (--max-engine-restarts)"
        why = how if self._max_restarts == 0 else f"{how}, after {limit}"
        self._state.away(why)
        return why

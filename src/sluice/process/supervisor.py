"""Keeps an engine running: starts it, notices its end, starts another one, and gives up after too many restarts.

    loading --ready--> serving --died or hangs--> starting another --ready--> serving ...
       |                                             |
       +--cannot start: an error for the user        +--too many in RESTART_WINDOW: gave up

The client (`client`) keeps the requests meanwhile; `quarantine` finds the request that kills engines.
"""

from __future__ import annotations

import logging
import time
from collections import deque
from dataclasses import replace

from sluice.config import EngineConfig
from sluice.process.client import EngineClient
from sluice.process.engine_state import EngineState
from sluice.process.heartbeat import Reading
from sluice.process.launch import EngineProcess, EngineStartError, EngineTimeouts
from sluice.process.wire import Ready, Start

LOGGER = logging.getLogger("sluice.server")
RESTART_WINDOW = 600.0
"""Seconds in which restarts are counted."""


class RestartBudget:
    """Limits how often an engine is restarted.

    Args:
        limit: restarts within the window; 0 allows none.
        window: seconds.
    """

    def __init__(self, limit: int, window: float = RESTART_WINDOW) -> None:
        self._limit = limit
        self._window = window
        self._spent: deque[float] = deque()

    def spend(self, now: float) -> bool:
        """Count a restart and return True, or return False if none is left."""
        while self._spent and now - self._spent[0] > self._window:
            self._spent.popleft()
        if len(self._spent) >= self._limit:
            return False
        self._spent.append(now)
        return True


class Supervisor:
    """Runs the engines of one server, one after the other.

    Args:
        message: starts the first engine; `config_of` says what is different for later ones.
        client: is attached to each engine, and detached from it when it ends.
        state: is kept up to date.
        max_restarts: see `RestartBudget`.
        timeouts: of each engine.
    """

    def __init__(
        self,
        message: Start,
        client: EngineClient,
        state: EngineState,
        max_restarts: int,
        timeouts: EngineTimeouts | None = None,
    ) -> None:
        self._message = message
        self._client = client
        self._state = state
        self._budget = RestartBudget(max_restarts)
        self._max_restarts = max_restarts
        self._timeouts = timeouts
        self._epoch = 0
        self._pool_tokens: int | None = None
        self._engine: EngineProcess | None = None

    async def start(self) -> Ready:
        """Start the first engine.

        Raises:
            EngineStartError: it cannot be started.
        """
        engine, ready = await self._start()
        self._pool_tokens = ready.config.cache.max_total_tokens
        self._serve(engine)
        return ready

    async def run(self) -> str:
        """Keep an engine running, first the one that `start` started. Returns why it gave up."""
        while True:
            how = await self._run_engine()
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
        """End the engine, if one runs. The caller must have cancelled `run`, or another engine is started."""
        engine, self._engine = self._engine, None
        if engine is not None:
            await engine.close(at_once=at_once)

    async def _start(self) -> tuple[EngineProcess, Ready]:
        config = config_of(self._message.config, self._epoch, self._pool_tokens)
        message = replace(self._message, config=config, epoch=self._epoch)
        self._engine = engine = await EngineProcess.spawn(message, self._timeouts)
        try:
            return engine, await engine.ready()
        except EngineStartError:
            await self.close()
            raise

    def _serve(self, engine: EngineProcess) -> None:
        self._state.serving(engine.pid)
        self._client.attach(engine.send, engine.epoch)

    async def _run_engine(self) -> str:
        """Serve with the engine until it ends, and return how it ended."""
        engine = self._engine
        assert engine is not None, "no engine was started"
        how = await engine.run(self._client.deliver, self._on_reading)
        self._state.away(f"the engine {how}; another one is started")
        self._client.detach(how, engine.in_flight())
        await self.close()
        return f"the engine {how}"

    def _on_reading(self, reading: Reading, silent_seconds: float) -> None:
        self._state.reading, self._state.silent_seconds = reading, silent_seconds

    def _give_up(self, how: str) -> str:
        self._state.has_given_up = True
        limit = f"{self._max_restarts} restarts in {RESTART_WINDOW / 60:g} minutes (--max-engine-restarts)"
        reason = how if self._max_restarts == 0 else f"{how}, after {limit}"
        self._state.away(reason)
        return reason


def config_of(config: EngineConfig, epoch: int, pool_tokens: int | None) -> EngineConfig:
    """Return the options of the engine of this epoch.

    A later engine writes a trace file of its own, and its KV pool is as large as the first one's: sized by the memory
    that is free at the moment, it might not hold the requests that the first one had admitted.

    Args:
        pool_tokens: tokens of the first engine's KV pool; None for the first engine.
    """
    if epoch == 0:
        return config
    if config.trace.trace is not None:
        config = replace(config, trace=replace(config.trace, trace=f"{config.trace.trace}.{epoch}"))
    return replace(config, cache=replace(config.cache, max_total_tokens=pool_tokens))

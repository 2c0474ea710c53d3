"""Keeps an engine running: starts it, notices its end, starts another one, and gives up when that does not help.

    loading --ready--> serving --died or hangs--> pause, starting another --ready--> serving ...
       |                                             |         |
       |                                             |         +--cannot start now: again, for `restart` seconds
       +--cannot start: an error for the user        +--too many in RESTART_WINDOW: gave up

An engine that is not needed is ended, too, and another one is started when it is needed again (`sleep`). That is no
restart.

The client (`client`) keeps the requests meanwhile; `quarantine` finds the request that kills engines.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from functools import partial

from sluice.config import EngineConfig
from sluice.process.client import EngineClient
from sluice.process.early import EarlyEngine
from sluice.process.engine_state import EngineState, Loading
from sluice.process.heartbeat import Reading
from sluice.process.kv_events.board import KvEventBoard, KvEventSink
from sluice.process.launch import CannotStartNow, EngineProcess, EngineStartError, EngineTimeouts
from sluice.process.loading_pace import LoadingPace
from sluice.process.restarts import RESTART_WINDOW, Backoff, DescriptorReserve, RestartBudget
from sluice.process.sleep import PUT_TO_SLEEP, Sleep
from sluice.process.socket_folder import remove_abandoned
from sluice.process.wire import Delivered, KvEvents, Ready, Start

LOGGER = logging.getLogger("sluice.server")
FIRST_PAUSE, LONGEST_PAUSE = 0.25, 15.0
"""Seconds between two engines that soon die."""
STEADY_SECONDS = 10.0
"""An engine that served for so long does not count as one that soon dies."""
LONGEST_WAIT = 5.0
"""Seconds between two attempts to start an engine while the machine lacks something."""


class GaveUp(Exception):
    """No other engine is started; the message says why."""


class Supervisor:
    """Runs the engines of one server, one after the other.

    Args:
        message: starts the first engine; `config_of` says what is different for later ones.
        client: is attached to each engine, and detached from it when it ends.
        state: is kept up to date.
        max_restarts: see `RestartBudget`.
        timeouts: of each engine.
        sleep: when the engine is not needed; None: it always is.
        kv_events: receives what the prefix cache stores and gives up, beside what the options say.
        on_loading: called with how far an engine is loaded, now and then.
        early: a process for the first engine.
    """

    def __init__(
        self,
        message: Start,
        client: EngineClient,
        state: EngineState,
        max_restarts: int,
        timeouts: EngineTimeouts | None = None,
        sleep: Sleep | None = None,
        kv_events: KvEventSink | None = None,
        on_loading: Callable[[Loading], None] = lambda loading: None,
        early: EarlyEngine | None = None,
    ) -> None:
        self._kv_events = KvEventBoard(message.config, state.kv_events, kv_events)
        self._message = replace(message, reports_kv_events=self._kv_events.is_on)
        self._client = client
        self._state = state
        self._budget = RestartBudget(max_restarts)
        self._max_restarts = max_restarts
        self._timeouts = timeouts or EngineTimeouts()
        self._pauses = Backoff(FIRST_PAUSE, LONGEST_PAUSE)
        self._reserve = DescriptorReserve()
        self._epoch = 0
        self._pool_tokens: int | None = None
        self._fingerprint = ""
        self._engine: EngineProcess | None = None
        self._sleep = Sleep(client, state) if sleep is None else sleep
        self._ending: asyncio.Task[None] | None = None
        self._on_loading = on_loading
        self._early = early

    async def start(self) -> Ready:
        """Start the first engine. Before that, remove the socket folders of servers that were killed.

        Raises:
            ConfigError: KV events cannot be published.
            EngineStartError: it cannot be started.
        """
        remove_abandoned()
        self._kv_events.open()
        try:
            engine, ready = await self._start()
        except BaseException:
            self._kv_events.close()
            raise
        self._pool_tokens = ready.config.cache.max_total_tokens
        self._serve(engine, ready)
        return ready

    async def run(self, on_restart: Callable[[Ready], None] = lambda ready: None) -> str:
        """Keep an engine running, first the one that `start` started. Returns why it gave up.

        Args:
            on_restart: called with what each later engine is like, before it gets requests.
        """
        try:
            while True:
                how = await self._run_engine()
                engine, ready = await (self._awakened() if how is None else self._replacement(how))
                on_restart(ready)
                self._serve(engine, ready)
        except GaveUp as error:
            self._state.give_up(str(error))
            self._sleep.announce()
            return str(error)

    async def close(self, *, at_once: bool = False) -> None:
        """End the engine, if one runs. The caller must have cancelled `run`, or another engine is started."""
        await self._end_engine(at_once=at_once)
        if self._ending is not None:
            await asyncio.wait({self._ending})
        self._reserve.release()
        self._kv_events.close()

    async def _replacement(self, how: str) -> tuple[EngineProcess, Ready]:
        """Start another engine, after one that ended as `how` says.

        Raises:
            GaveUp: too many engines have ended, or none could be started for too long.
        """
        while True:
            if not self._budget.spend(time.monotonic()):
                raise GaveUp(self._too_many(how))
            LOGGER.warning("%s; starting another one", how)
            self._state.stats.restarts += 1
            self._epoch += 1
            await asyncio.sleep(self._pauses.next())
            try:
                return await self._start_when_possible(how)
            except EngineStartError as error:
                how = str(error)
                self._state.away(f"{how}; another one is started")

    async def _start_when_possible(self, how: str) -> tuple[EngineProcess, Ready]:
        """Start an engine; while the machine lacks something for that, try again.

        Raises:
            EngineStartError: it cannot be started, for another reason.
            GaveUp: something was lacking for too long.
        """
        began, waits, logged = time.monotonic(), Backoff(FIRST_PAUSE, LONGEST_WAIT), ""
        waits.next()
        while True:
            try:
                return await self._start()
            except CannotStartNow as error:
                lacking = f"{how}, and no other one can be started at the moment: {error}"
                left = began + self._timeouts.restart - time.monotonic()
                if left <= 0:
                    raise GaveUp(
                        f"{lacking}; given up after {self._timeouts.restart:g} s (--restart-timeout)"
                    ) from error
                self._state.cannot_start(lacking)
                if lacking != logged:
                    LOGGER.warning("%s; trying again for %.0f s", lacking, left)
                    logged = lacking
                await asyncio.sleep(min(waits.next(), left))

    async def _start(self) -> tuple[EngineProcess, Ready]:
        """Start an engine with the descriptors of the reserve, and wait until it is ready.

        Raises:
            EngineStartError: it cannot be started.
        """
        config = config_of(self._message.config, self._epoch, self._pool_tokens)
        fingerprint = "" if self._sleep.takes_new_weights else self._fingerprint
        adapters = self._client.adapters.kept() if self._epoch else None
        message = replace(self._message, config=config, epoch=self._epoch, fingerprint=fingerprint, adapters=adapters)
        try:
            self._reserve.fill()  # as many as a start needs; with fewer, libzmq may abort this process
        except OSError as error:
            raise CannotStartNow(f"no file descriptors: {error.strerror}") from error
        self._reserve.release()
        try:
            self._engine = engine = await EngineProcess.spawn(message, self._timeouts, self._early)
            return engine, await engine.ready(partial(self._loading, LoadingPace()))
        except EngineStartError:
            await self._end_engine()
            raise
        finally:
            with suppress(OSError):
                self._reserve.fill()

    def _serve(self, engine: EngineProcess, ready: Ready) -> None:
        self._fingerprint = ready.fingerprint
        self._sleep.takes_new_weights = False
        self._state.serving(engine.pid, ready.disabled_tiers)
        self._client.attach(engine.send, engine.epoch)
        if self._epoch:
            self._client.adapters.served(ready.adapters, ready.lost_adapters)
        else:
            self._client.adapters.start_with(ready.adapters)
        self._sleep.announce()

    async def _run_engine(self) -> str | None:
        """Serve with the engine until it ends, and return how it ended; None: it was ended because it is not needed."""
        engine, began = self._engine, time.monotonic()
        assert engine is not None, "no engine was started"
        running = asyncio.create_task(engine.run(self._deliver, self._on_reading))
        try:
            if await self._is_sleep_due(running):
                await self._fall_asleep(running)
                return None
        finally:
            running.cancel()
            await asyncio.wait({running})
        how = running.result()
        self._kv_events.cleared()
        self._state.away(f"the engine {how}; another one is started")
        self._client.detach(how, engine.in_flight())
        await self._end_engine()
        if time.monotonic() - began >= STEADY_SECONDS:
            self._pauses.reset()
        return f"the engine {how}"

    def _deliver(self, frame: Delivered, epoch: int) -> None:
        if isinstance(frame, KvEvents):
            self._kv_events.publish(frame.batch)
        else:
            self._client.deliver(frame, epoch)

    async def _is_sleep_due(self, running: asyncio.Task[str]) -> bool:
        """Wait until the engine is not needed, and return True, or until it has ended."""
        while True:
            due = asyncio.create_task(self._sleep.due())
            try:
                await asyncio.wait({running, due}, return_when=asyncio.FIRST_COMPLETED)
            finally:
                due.cancel()
                await asyncio.wait({due})
            if running.done():
                return False
            if self._sleep.is_due():  # since then a request may have come
                return True

    async def _fall_asleep(self, running: asyncio.Task[str]) -> None:
        """End the engine as at the end of the server, so that its tiers on a disk are kept."""
        LOGGER.info("the engine is ended: it is not needed")
        self._client.rest(PUT_TO_SLEEP if self._state.is_put_to_sleep else None)
        self._state.asleep()
        running.cancel()
        await asyncio.wait({running})
        self._kv_events.cleared()
        self._ending = asyncio.create_task(self._end_engine())
        await asyncio.shield(self._ending)
        self._sleep.fell_asleep()

    async def _awakened(self) -> tuple[EngineProcess, Ready]:
        """Start another engine when one is needed.

        Raises:
            GaveUp: as `_replacement`.
        """
        await self._sleep.over()
        self._state.waking()
        self._client.await_engine()
        self._epoch += 1
        try:
            return await self._start_when_possible("the engine was asleep")
        except EngineStartError as error:
            self._state.away(f"{error}; another one is started")
            return await self._replacement(str(error))

    async def _end_engine(self, *, at_once: bool = False) -> None:
        engine, self._engine = self._engine, None
        if engine is not None:
            await engine.close(at_once=at_once)

    def _loading(self, pace: LoadingPace, reading: Reading, seconds: float) -> None:
        self._state.loading = loading = Loading(reading, seconds, pace.seconds_left(reading, seconds))
        self._on_loading(loading)

    def _on_reading(self, reading: Reading, silent_seconds: float) -> None:
        self._state.reading, self._state.silent_seconds = reading, silent_seconds

    def _too_many(self, how: str) -> str:
        limit = f"{self._max_restarts} restarts in {RESTART_WINDOW / 60:g} minutes (--max-engine-restarts)"
        return how if self._max_restarts == 0 else f"{how}, after {limit}"


def config_of(config: EngineConfig, epoch: int, pool_tokens: int | None) -> EngineConfig:
    """Return the options of the engine of this epoch.

    A later engine writes a trace file of its own, and its KV pool is as large as the first one's: sized by the memory
    that is free at the moment, it might not hold the requests that the first one had admitted. A share of the memory,
    which sized the first pool, would have no effect beside that size and be refused.

    Args:
        pool_tokens: tokens of the first engine's KV pool; None for the first engine.
    """
    if epoch == 0:
        return config
    if config.trace.trace is not None:
        config = replace(config, trace=replace(config.trace, trace=f"{config.trace.trace}.{epoch}"))
    if pool_tokens is None:
        return config
    model = replace(config.model, mem_fraction_static=None, gpu_memory_utilization=None)
    return replace(config, model=model, cache=replace(config.cache, max_total_tokens=pool_tokens))

"""Starts the engine's process, waits until it is ready, carries messages, and notices its end, or that it is stuck."""

from __future__ import annotations

import asyncio
import logging
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field, replace

from sluice.config import EngineConfig, ServerConfig
from sluice.engine.messages import Message, Shutdown, Stats
from sluice.process.client import OutOfStep
from sluice.process.heartbeat import Reading
from sluice.process.liveness import LivenessWatch
from sluice.process.wire import Failed, Outputs, Ready, Start, WireError
from sluice.process.zmq_link import SocketFolder, ZmqChannel

LOGGER = logging.getLogger("sluice.server")
FACTORY = "sluice.process.engine_process:build"
SHUTDOWN_SECONDS = 3.0
"""How long an engine that was told to end may take before it is killed."""
KILL_SECONDS = 10.0
"""How long a killed process is waited for. Freeing much memory takes seconds; one that waits for a disk that hangs ends
when the disk comes back, if it ever does."""
LOOK_SECONDS = 0.2
"""Between two looks at the heartbeat."""
LAST_WORDS_SECONDS = 0.02
"""How long after a process' end one of its messages may still be on its way."""

Deliver = Callable[[Outputs | Stats, int], None]
Looked = Callable[[Reading, float], None]


class EngineStartError(RuntimeError):
    """The engine could not start; the message is one line for the user."""


@dataclass(frozen=True, slots=True)
class Patience:
    """How long an engine may take, in seconds."""

    start: float = ServerConfig.start_timeout
    """To load the model."""
    heartbeat: float = ServerConfig.heartbeat_timeout
    """From one sign of life to the next."""
    step: float = ServerConfig.step_timeout
    """To wait for one step on the device."""

    @classmethod
    def of(cls, config: ServerConfig) -> Patience:
        return cls(config.start_timeout, config.heartbeat_timeout, config.step_timeout)


class EngineProcess:
    """One engine process and the line to it."""

    def __init__(
        self,
        process: asyncio.subprocess.Process,
        folder: SocketFolder,
        channel: ZmqChannel,
        epoch: int,
        patience: Patience,
    ) -> None:
        self.epoch = epoch
        self._process = process
        self._folder = folder
        self._channel = channel
        self._patience = patience
        self._ended = asyncio.create_task(process.wait(), name="engine-exit")
        self._watch = LivenessWatch(patience.heartbeat, patience.step, time.monotonic())
        self._failure: str | None = None
        self._listens = False
        self._is_left = False
        """It was killed, has not ended, and is waited for no longer."""

    @classmethod
    async def spawn(
        cls,
        config: EngineConfig,
        *,
        factory: str = FACTORY,
        log_level: str = "warning",
        log_format: str = "text",
        epoch: int = 0,
        patience: Patience | None = None,
        faults: str = "",
    ) -> EngineProcess:
        """Start a process that builds an engine for `config`. Returns before the model is loaded.

        Args:
            epoch: its number among the engines of this server, from 0.
            faults: what goes wrong in it (see `faults`).
        """
        folder = SocketFolder.fresh()
        channel = ZmqChannel(folder, epoch)
        try:
            process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-m", "sluice.process.engine_process", str(folder.path)),
                stdin=asyncio.subprocess.PIPE,  # its end tells the child that the server is gone
                stdout=sys.stderr.fileno(),
                start_new_session=True,  # Ctrl-C in a terminal reaches the server alone
            )
        except BaseException as error:
            channel.close()
            folder.remove()
            if isinstance(error, OSError):
                raise EngineStartError(f"the engine's process cannot be started: {error}") from error
            raise
        channel.send(Start(factory, config, log_level, log_format, epoch, faults))
        return cls(process, folder, channel, epoch, patience or Patience())

    @property
    def pid(self) -> int:
        return self._process.pid

    def in_flight(self) -> frozenset[int]:
        """Requests that it was computing for when it died, as far as they are known."""
        return self._channel.heartbeat.in_flight()

    async def ready(self) -> Ready:
        """Wait until the model is loaded.

        Raises:
            EngineStartError: it cannot be, and why.
        """
        receiving = asyncio.create_task(self._channel.receive())
        waits_for = {receiving, self._ended}
        done, _ = await asyncio.wait(waits_for, timeout=self._patience.start, return_when=asyncio.FIRST_COMPLETED)
        if not receiving.done():
            # The last words of a process arrive before its end or hardly later.
            await asyncio.wait({receiving}, timeout=0.5 if done else 0)
        if not receiving.done():
            receiving.cancel()
            await asyncio.wait({receiving})
            if not done:
                raise EngineStartError(f"the engine was not ready within {self._patience.start:g} s (--start-timeout)")
            raise EngineStartError(f"the engine {self._how_it_ended()} before it was ready")
        match receiving.result():
            case Ready() as ready:
                self._listens = True
                return ready
            case Failed(message):
                raise EngineStartError(message)
            case other:
                raise EngineStartError(f"the engine began with {other!r}")

    def send(self, message: Message) -> None:
        self._channel.send(message)

    async def run(self, deliver: Deliver, looked: Looked = lambda reading, silent: None) -> str:
        """Deliver outputs and answers, with the engine's epoch, until the process ends; end it if it is stuck.

        Args:
            deliver: may raise `OutOfStep`, which ends the process.
            looked: told of every look at the heartbeat, and of the seconds since a sign of life.

        Returns:
            How it ended, in words that follow "the engine". All that it said was delivered then.
        """
        delivering = asyncio.create_task(self._deliver(deliver))
        watching = asyncio.create_task(self._look(looked))
        try:
            await asyncio.wait({delivering, watching, self._ended}, return_when=asyncio.FIRST_COMPLETED)
            if watching.done() and not self._ended.done():
                return await self._kill(watching.result())
            await self._hear_out(delivering)
            if delivering.done() and not delivering.cancelled():  # as it is when `close` was called meanwhile
                return await self._kill(f"spoke nonsense and was ended: {delivering.result()}")
            return self._how_it_ended()
        finally:
            delivering.cancel()
            watching.cancel()
            await asyncio.wait({delivering, watching})

    async def _deliver(self, deliver: Deliver) -> WireError | OutOfStep:
        while True:
            try:
                frame = await self._channel.receive()
                match frame:
                    case Outputs() | Stats():
                        deliver(frame, self.epoch)
                    case Failed(message):
                        self._failure = message
                    case other:
                        return WireError(f"unexpected message {other!r}")
            except (WireError, OutOfStep) as error:
                return error

    async def _hear_out(self, delivering: asyncio.Task[WireError | OutOfStep]) -> None:
        """Deliver what a process that has ended said before."""
        count = -1
        while not delivering.done() and count != self._channel.counts.received:
            count = self._channel.counts.received
            await asyncio.wait({delivering}, timeout=LAST_WORDS_SECONDS)

    async def _look(self, looked: Looked) -> str:
        while True:
            await asyncio.sleep(LOOK_SECONDS)
            reading = self._channel.heartbeat.read()
            verdict = self._watch.look(reading, self._channel.counts, time.monotonic())
            looked(reading, self._watch.silent)
            if verdict is not None:
                return verdict

    async def _kill(self, why: str) -> str:
        await self._end()
        return why

    async def _end(self) -> None:
        """End the process by force, and wait until it is gone, for `KILL_SECONDS` at most. Twice is once."""
        if self._ended.done() or self._is_left:
            return
        with suppress(ProcessLookupError):  # it may have ended just now
            self._process.kill()
        await asyncio.wait({self._ended}, timeout=KILL_SECONDS)
        if not self._ended.done():
            self._is_left = True
            LOGGER.warning(
                "the engine's process %d was killed and has not ended after %g s, as one that waits for a disk that"
                " hangs; it is left alone, with its memory and its files",
                self.pid,
                KILL_SECONDS,
            )

    def _how_it_ended(self) -> str:
        status = self._process.returncode
        assert status is not None
        if self._failure is not None:
            return f"failed: {self._failure}"
        return f"was killed by signal {-status}" if status < 0 else f"ended with status {status}"

    async def close(self, *, at_once: bool = False) -> None:
        """End the process, by force if it is loading or takes longer than `SHUTDOWN_SECONDS`; remove the sockets.

        Returns in bounded time, whatever the process does.

        Args:
            at_once: by force in any case.
        """
        try:
            if self._listens and not at_once and not self._ended.done():
                self.send(Shutdown())
                await asyncio.wait({self._ended}, timeout=SHUTDOWN_SECONDS)
            await self._end()
        finally:
            if self._process.stdin is not None:
                self._process.stdin.close()
            self._channel.close()
            self._folder.remove()


@dataclass(frozen=True, slots=True)
class Launcher:
    """All that it takes to start the engines of one server."""

    config: EngineConfig
    factory: str = FACTORY
    log_level: str = "warning"
    log_format: str = "text"
    patience: Patience = field(default_factory=Patience)
    faults: str = ""

    async def spawn(self, epoch: int) -> EngineProcess:
        """Start the engine of this number; see `EngineProcess.spawn`."""
        return await EngineProcess.spawn(
            self.config_of(epoch),
            factory=self.factory,
            log_level=self.log_level,
            log_format=self.log_format,
            epoch=epoch,
            patience=self.patience,
            faults=self.faults,
        )

    def config_of(self, epoch: int) -> EngineConfig:
        """Each engine writes a trace of its own: it was another scheduler."""
        trace = self.config.trace.trace
        if trace is None or epoch == 0:
            return self.config
        return replace(self.config, trace=replace(self.config.trace, trace=f"{trace}.{epoch}"))

    def after(self, ready: Ready) -> Launcher:
        """For engines to follow: as large as the first, or what it admitted might not fit the next."""
        total = ready.config.cache.max_total_tokens
        return replace(self, config=replace(self.config, cache=replace(self.config.cache, max_total_tokens=total)))

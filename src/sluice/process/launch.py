"""Starts one engine process, waits until it is ready, delivers its messages, and notices when it ends or hangs."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from contextlib import ExitStack, closing, suppress
from dataclasses import dataclass

from sluice.config import ServerConfig
from sluice.engine.messages import FromServer, Shutdown
from sluice.process.activity import Activity, activity_of
from sluice.process.child import AnyChild, EarlyChild, started
from sluice.process.delivery import OutputOrderError
from sluice.process.early import EarlyEngine
from sluice.process.heartbeat import Reading
from sluice.process.liveness import LivenessWatch, LoadingWatch
from sluice.process.socket_folder import SocketFolder
from sluice.process.wire import Delivered, Failed, Frame, Ready, Start, WireError
from sluice.process.zmq_link import ZmqChannel

LOGGER = logging.getLogger("sluice.server")
SHUTDOWN_SECONDS = 3.0
"""Time for an engine to shut down before it is killed."""
KILL_SECONDS = 10.0
"""Time to wait for the end of a killed process. Freeing much memory takes seconds; a process in a system call on a disk
that hangs ends only when the disk responds, if ever."""
LOOK_SECONDS = 0.2
"""Time between two looks at the heartbeat."""
LATE_SECONDS = 0.02
"""Time in which a message that was sent before a process ended may still arrive."""

Deliver = Callable[[Delivered, int], None]
OnReading = Callable[[Reading, float], None]
Judge = Callable[[Reading], str | None]
"""Returns why an engine counts as dead, or None."""


class EngineStartError(RuntimeError):
    """The engine could not start; the message is one line for the user."""


class CannotStartNow(EngineStartError):
    """The machine lacks something that an engine needs to start: descriptors, memory, a temporary folder."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineTimeouts:
    """Limits on an engine's time, in seconds."""

    start: float = ServerConfig.start_timeout
    """Seconds to load the model."""
    progress: float = ServerConfig.progress_timeout
    """Seconds without progress while the model loads."""
    heartbeat: float = ServerConfig.heartbeat_timeout
    """Seconds between two ticks of the heartbeat."""
    step: float = ServerConfig.step_timeout
    """Seconds to wait for one step on the device."""
    restart: float = ServerConfig.restart_timeout
    """Seconds to wait until the machine has what another engine needs to start."""

    @classmethod
    def of(cls, server: ServerConfig) -> EngineTimeouts:
        """Return the limits that a server's options set."""
        return cls(
            start=server.start_timeout,
            progress=server.progress_timeout,
            heartbeat=server.heartbeat_timeout,
            step=server.step_timeout,
            restart=server.restart_timeout,
        )


class EngineProcess:
    """One engine process and the connection to it."""

    def __init__(
        self,
        process: AnyChild,
        folder: SocketFolder,
        channel: ZmqChannel,
        epoch: int,
        timeouts: EngineTimeouts,
    ) -> None:
        self.epoch = epoch
        self._process = process
        self._folder = folder
        self._channel = channel
        self._timeouts = timeouts
        self._ended = asyncio.create_task(process.wait(), name="engine-exit")
        self._failure: str | None = None
        self._is_ready = False
        self._is_abandoned = False
        """It was killed and did not end in time."""

    @classmethod
    async def spawn(
        cls, start: Start, timeouts: EngineTimeouts | None = None, early: EarlyEngine | None = None
    ) -> EngineProcess:
        """Start a process that builds an engine. Returns before the model is loaded.

        Args:
            early: a process that was started for this, and is taken if it still runs.

        Raises:
            CannotStartNow: the system does not give what it needs.
        """
        with ExitStack() as undo:
            try:
                folder = SocketFolder.fresh()
                undo.callback(folder.remove)
                channel = undo.enter_context(closing(ZmqChannel(folder)))
                taken = None if early is None else early.take(folder.path)
                child = await started(folder.path) if taken is None else EarlyChild(taken)
            except (OSError, RuntimeError) as error:  # RuntimeError: asyncio cannot start the thread that waits for it
                raise CannotStartNow(f"the engine's process cannot be started: {error}") from error
            channel.send(start)
            undo.pop_all()
        return cls(child, folder, channel, start.epoch, timeouts or EngineTimeouts())

    @property
    def pid(self) -> int:
        return self._process.pid

    def in_flight(self) -> frozenset[int]:
        """Return the requests in the unfinished steps of a process that died, as far as they are known."""
        return self._channel.heartbeat.in_flight()

    async def ready(self, on_reading: OnReading = lambda reading, seconds: None) -> Ready:
        """Wait until the model is loaded.

        Args:
            on_reading: called with each reading of the heartbeat and the seconds since the start.

        Raises:
            EngineStartError: it cannot be loaded, or not in time.
        """
        receiving = asyncio.create_task(self._channel.receive())
        watching = asyncio.create_task(self._watch_loading(on_reading))
        try:
            waiting = {receiving, watching, self._ended}
            await asyncio.wait(waiting, timeout=self._timeouts.start, return_when=asyncio.FIRST_COMPLETED)
            if self._ended.done():  # the last message of a process arrives before its end or shortly after
                await asyncio.wait({receiving}, timeout=0.5)
            if receiving.done():
                return self._answered(receiving)
            if self._ended.done():
                raise EngineStartError(f"the engine {self._how_it_ended()} before it was ready")
            if watching.done():
                raise EngineStartError(f"the engine {watching.result()}")
            raise EngineStartError(f"the engine was not ready within {self._timeouts.start:g} s (--start-timeout)")
        finally:
            receiving.cancel()
            watching.cancel()
            await asyncio.wait({receiving, watching})

    def _answered(self, receiving: asyncio.Task[Frame]) -> Ready:
        """Return the engine's first message if it is `Ready`."""
        try:
            frame = receiving.result()
        except WireError as error:
            raise EngineStartError(f"the engine sent an invalid message before it was ready: {error}") from error
        match frame:
            case Ready() as ready:
                self._is_ready = True
                return ready
            case Failed(message, is_shortage):
                raise CannotStartNow(message) if is_shortage else EngineStartError(message)
            case other:
                raise EngineStartError(f"the engine's first message must be Ready or Failed, got {other!r}")

    async def _watch_loading(self, on_reading: OnReading) -> str:
        began = time.monotonic()
        watch = LoadingWatch(self._timeouts.progress, began)

        def judge(reading: Reading) -> str | None:
            now = time.monotonic()
            on_reading(reading, now - began)
            return watch.look(reading, now, self._activity)

        return await self._look(judge)

    async def _watch_steps(self, on_reading: OnReading) -> str:
        watch = LivenessWatch(self._timeouts.heartbeat, self._timeouts.step, time.monotonic())

        def judge(reading: Reading) -> str | None:
            verdict = watch.look(reading, time.monotonic(), self._activity)
            on_reading(reading, watch.silent)
            return verdict

        return await self._look(judge)

    async def _look(self, judge: Judge) -> str:
        """Read the heartbeat until it shows that the engine is dead, and return why."""
        while True:
            await asyncio.sleep(LOOK_SECONDS)
            verdict = judge(self._channel.heartbeat.read())
            if verdict is not None:
                return verdict

    def _activity(self) -> Activity | None:
        return activity_of(self.pid)

    def send(self, message: FromServer) -> None:
        self._channel.send(message)

    async def run(self, deliver: Deliver, on_reading: OnReading = lambda reading, silent: None) -> str:
        """Deliver the engine's messages until its process ends, and kill the process if it hangs.

        Args:
            deliver: called with each message and the engine's epoch. `OutputOrderError` from it kills the process.
            on_reading: called with each reading of the heartbeat and the seconds since the last tick.

        Returns:
            How the process ended, in words that follow "the engine". All its messages have been delivered then.
        """
        delivering = asyncio.create_task(self._deliver(deliver))
        watching = asyncio.create_task(self._watch_steps(on_reading))
        try:
            await asyncio.wait({delivering, watching, self._ended}, return_when=asyncio.FIRST_COMPLETED)
            if watching.done() and not self._ended.done():
                await self._kill()
                return watching.result()
            await self._deliver_late(delivering)
            if delivering.done() and not delivering.cancelled():  # `close` may have cancelled it
                await self._kill()
                return f"sent an invalid message and was killed: {delivering.result()}"
            return self._how_it_ended()
        finally:
            delivering.cancel()
            watching.cancel()
            await asyncio.wait({delivering, watching})

    async def _deliver(self, deliver: Deliver) -> WireError | OutputOrderError:
        while True:
            try:
                frame = await self._channel.receive()
                if isinstance(frame, Delivered):
                    deliver(frame, self.epoch)
                    await asyncio.sleep(0)  # several may have arrived, and `receive` would not wait
                elif isinstance(frame, Failed):
                    self._failure = frame.message
                else:
                    return WireError(f"unexpected message {frame!r}")
            except (WireError, OutputOrderError) as error:
                return error

    async def _deliver_late(self, delivering: asyncio.Task[WireError | OutputOrderError]) -> None:
        """Deliver the messages that a process sent before it ended."""
        count = -1
        while not delivering.done() and count != self._channel.num_received:
            count = self._channel.num_received
            await asyncio.wait({delivering}, timeout=LATE_SECONDS)

    async def _kill(self) -> None:
        """Kill the process and wait until it has ended, for `KILL_SECONDS` at most. A second call does nothing."""
        if self._ended.done() or self._is_abandoned:
            return
        with suppress(ProcessLookupError):  # it may have ended just now
            self._process.kill()
        await asyncio.wait({self._ended}, timeout=KILL_SECONDS)
        if not self._ended.done():
            self._is_abandoned = True
            LOGGER.warning(
                "the engine's process %d was killed but has not ended after %g s, perhaps because a disk does not"
                " respond; it is abandoned and keeps its memory and files",
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
        """End the process and remove the sockets, in bounded time.

        A process that is loading, or does not shut down within `SHUTDOWN_SECONDS`, is killed.

        Args:
            at_once: kill it in any case.
        """
        try:
            if self._is_ready and not at_once and not self._ended.done():
                self.send(Shutdown())
                await asyncio.wait({self._ended}, timeout=SHUTDOWN_SECONDS)
            await self._kill()
        finally:
            self._process.close_stdin()
            self._channel.close()
            self._folder.remove()

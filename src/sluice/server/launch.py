"""Starts the engine's process, waits until it is ready, carries messages, and notices its end."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable

from sluice.config import EngineConfig
from sluice.engine.messages import Message, Shutdown, Stats
from sluice.server.zmq_link import SocketFolder, ZmqChannel
from sluice.wire import Failed, Outputs, Ready, Start, WireError

FACTORY = "sluice.server.engine_process:build"
SHUTDOWN_SECONDS = 3.0
"""How long an engine that was told to end may take before it is killed."""


class EngineStartError(RuntimeError):
    """The engine could not start; the message is one line for the user."""


class EngineProcess:
    """One engine process and the line to it."""

    def __init__(self, process: asyncio.subprocess.Process, folder: SocketFolder, channel: ZmqChannel) -> None:
        self._process = process
        self._folder = folder
        self._channel = channel
        self._ended = asyncio.create_task(process.wait(), name="engine-exit")
        self._listens = False

    @classmethod
    async def spawn(
        cls,
        config: EngineConfig,
        *,
        factory: str = FACTORY,
        log_level: str = "warning",
        log_format: str = "text",
    ) -> EngineProcess:
        """Start a process that builds an engine for `config`. Returns before the model is loaded."""
        folder = SocketFolder.fresh()
        channel = ZmqChannel(folder)
        try:
            process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-m", "sluice.server.engine_process", str(folder.path)),
                stdin=asyncio.subprocess.PIPE,  # its end tells the child that the server is gone
                stdout=sys.stderr.fileno(),
                start_new_session=True,  # Ctrl-C in a terminal reaches the server alone
            )
        except OSError:
            channel.close()
            folder.remove()
            raise
        channel.send(Start(factory, config, log_level, log_format))
        return cls(process, folder, channel)

    @property
    def pid(self) -> int:
        return self._process.pid

    async def ready(self) -> Ready:
        """Wait until the model is loaded.

        Raises:
            EngineStartError: it cannot be, and why.
        """
        receiving = asyncio.create_task(self._channel.receive())
        await asyncio.wait({receiving, self._ended}, return_when=asyncio.FIRST_COMPLETED)
        if not receiving.done():
            # The last words of a process arrive before its end or hardly later.
            await asyncio.wait({receiving}, timeout=0.5)
        if not receiving.done():
            receiving.cancel()
            await asyncio.wait({receiving})
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

    async def run(self, deliver: Callable[[Outputs | Stats], None]) -> str:
        """Deliver outputs and answers until the process ends. Returns how it ended."""
        delivering = asyncio.create_task(self._deliver(deliver))
        await asyncio.wait({delivering, self._ended}, return_when=asyncio.FIRST_COMPLETED)
        if not delivering.done():
            delivering.cancel()
            await asyncio.wait({delivering})
            return f"the engine {self._how_it_ended()}"
        self._process.kill()
        return f"the engine spoke nonsense and was ended: {delivering.result()}"

    async def _deliver(self, deliver: Callable[[Outputs | Stats], None]) -> WireError:
        while True:
            try:
                frame = await self._channel.receive()
            except WireError as error:
                return error
            if not isinstance(frame, Outputs | Stats):
                return WireError(f"unexpected message {frame!r}")
            deliver(frame)

    def _how_it_ended(self) -> str:
        status = self._process.returncode
        assert status is not None
        return f"was killed by signal {-status}" if status < 0 else f"ended with status {status}"

    async def close(self) -> None:
        """End the process, by force if it is loading or takes longer than `SHUTDOWN_SECONDS`; remove the sockets."""
        if self._listens and not self._ended.done():
            self.send(Shutdown())
            await asyncio.wait({self._ended}, timeout=SHUTDOWN_SECONDS)
        if not self._ended.done():
            self._process.kill()
        await self._ended
        if self._process.stdin is not None:
            self._process.stdin.close()
        self._channel.close()
        self._folder.remove()

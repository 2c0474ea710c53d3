"""The two ends of the line between the server and the engine: PUSH and PULL sockets in a private folder.

Each side binds the socket it reads and connects the one it writes: a connected PUSH queues without limit and never
blocks or drops, whether the other side is there yet or not. One message a step goes back, however many requests run.
A message is a stamp (`numbering`) and a frame (`wire`). Beside the sockets lies the heartbeat.
"""

from __future__ import annotations

import math
import shutil
import tempfile
from collections.abc import Sequence
from pathlib import Path

import zmq
import zmq.asyncio

from sluice.engine.heartbeat import Phase
from sluice.engine.messages import Abort, FlushCache, Message, QueryStats, Shutdown, Stats, Submit
from sluice.process.heartbeat import SharedHeartbeat
from sluice.process.liveness import Counts
from sluice.process.mailbox import Mailbox
from sluice.process.numbering import Incoming, Outgoing
from sluice.process.wire import Frame, Start, WireError, decode, encode, encode_outputs
from sluice.types import Output

LONGEST_SOCKET_PATH = 107
"""Bytes of a Unix socket's path on Linux (`sun_path`), less the closing zero; macOS has three less."""


TICK_MS = 1000
"""How often an engine that waits for messages says that it lives."""


class SocketFolder:
    """A fresh folder that only this user can enter (mode 0700), with the line's two sockets and the heartbeat."""

    def __init__(self, path: Path) -> None:
        self.path = path

    @classmethod
    def fresh(cls) -> SocketFolder:
        """
        Raises:
            OSError: no temporary folder has a path short enough for a socket.
        """
        for parent in (tempfile.gettempdir(), "/tmp"):
            folder = cls(Path(tempfile.mkdtemp(prefix="sluice-", dir=parent)))
            if len(folder.requests.encode()) - len("ipc://") <= LONGEST_SOCKET_PATH - 3:
                SharedHeartbeat.create(folder.heartbeat)
                return folder
            folder.remove()
        raise OSError(
            f"the temporary folder {tempfile.gettempdir()} is too long for a socket; set TMPDIR to a shorter one"
        )

    @property
    def requests(self) -> str:
        """Endpoint of what goes to the engine."""
        return f"ipc://{self.path}/requests"

    @property
    def outputs(self) -> str:
        """Endpoint of what comes from the engine."""
        return f"ipc://{self.path}/outputs"

    @property
    def heartbeat(self) -> Path:
        """File of the engine's heartbeat."""
        return self.path / "heartbeat"

    def remove(self) -> None:
        shutil.rmtree(self.path, ignore_errors=True)


def _prepare(socket: zmq.Socket[bytes] | zmq.asyncio.Socket, *, linger_ms: int) -> None:
    """No limit on queued messages: none is dropped and no sender waits."""
    socket.set(zmq.SNDHWM, 0)
    socket.set(zmq.RCVHWM, 0)
    socket.set(zmq.LINGER, linger_ms)


class ZmqLink:
    """The engine's end: a `Link` (see `engine.protocols`). While it waits for messages it ticks every second."""

    def __init__(self, folder: SocketFolder) -> None:
        self.heartbeat = SharedHeartbeat.open(folder.heartbeat)
        self._incoming = Incoming(None)
        self._outgoing = Outgoing(0)
        self._context = zmq.Context()
        self._requests = self._context.socket(zmq.PULL)
        self._outputs = self._context.socket(zmq.PUSH)
        _prepare(self._requests, linger_ms=0)
        _prepare(self._outputs, linger_ms=1000)
        self._requests.bind(folder.requests)
        self._outputs.connect(folder.outputs)
        self._posted = Mailbox()
        self._arrivals = zmq.Poller()
        self._arrivals.register(self._requests, zmq.POLLIN)
        self._arrivals.register(self._posted.fileno(), zmq.POLLIN)

    def receive_start(self) -> Start:
        """Wait for the first message.

        Raises:
            WireError: it is not a `Start`.
        """
        (frame,) = self._receive(0)
        if not isinstance(frame, Start):
            raise WireError(f"the first message must be a start, got {frame!r}")
        assert self._incoming.epoch is not None
        self._outgoing.epoch = self._incoming.epoch
        return frame

    def receive(self, *, block: bool, timeout: float | None = None) -> list[Message]:
        """Messages that have arrived, in order, posted ones first. With `block`, wait for at least one, for no longer
        than `timeout` seconds.

        Raises:
            WireError: something that no server sends, or something is missing.
        """
        self._tick(Phase.BUSY)
        if block:
            self._wait(timeout)
        messages: list[Message] = self._posted.take()
        while True:
            try:
                frames = self._receive(zmq.NOBLOCK)
            except zmq.Again:
                return messages
            for frame in frames:
                if not isinstance(frame, Submit | Abort | QueryStats | FlushCache | Shutdown):
                    raise WireError(f"not a message to an engine: {frame!r}")
                messages.append(frame)

    def post(self, message: Message) -> None:
        """Put a message in, from any thread of this process."""
        self._posted.post(message)

    def _wait(self, timeout: float | None) -> None:
        """Until something arrives, with a sign of life every second."""
        left = math.inf if timeout is None else timeout * 1000
        while not self._arrivals.poll(math.ceil(min(TICK_MS, left))):
            self._tick(Phase.IDLE)
            left -= TICK_MS
            if left <= 0:
                return

    def send(self, outputs: Sequence[Output]) -> None:
        """Queue the outputs of a step; returns at once."""
        self._outputs.send_multipart((self._outgoing.stamp(), encode_outputs(outputs)))

    def answer(self, stats: Stats) -> None:
        """Queue the answer to a query; returns at once."""
        self.send_frame(stats)

    def send_frame(self, frame: Frame) -> None:
        """Queue something else than outputs: `Ready` or `Failed`."""
        self._outputs.send_multipart((self._outgoing.stamp(), encode(frame)))

    def lose(self) -> None:
        """Count a message as sent that is not: a fault, for tests."""
        self._outgoing.stamp()

    def _receive(self, flags: int) -> list[Frame]:
        """The next message, nothing if it does not count."""
        stamp, *frames = self._requests.recv_multipart(flags)
        if not frames:
            raise WireError(f"not a stamp and a frame, but one part of {len(stamp)} bytes")
        return [decode(frames[0])] if self._incoming.accept(stamp) else []

    def _tick(self, phase: Phase) -> None:
        self.heartbeat.messages(received=self._incoming.count, sent=self._outgoing.count)
        self.heartbeat.tick(phase)

    def close(self) -> None:
        """Deliver what is queued, for at most a second, and give the sockets up."""
        self.heartbeat.close()
        self._requests.close()
        self._outputs.close()
        self._context.term()
        self._posted.close()


class ZmqChannel:
    """The server's end, for use in an event loop.

    Args:
        epoch: number of the engine at the other end.
    """

    def __init__(self, folder: SocketFolder, epoch: int = 0) -> None:
        self.heartbeat = SharedHeartbeat.open(folder.heartbeat)
        self._incoming = Incoming(epoch)
        self._outgoing = Outgoing(epoch)
        self._context = zmq.Context()
        self._requests = self._context.socket(zmq.PUSH)
        self._outputs = zmq.asyncio.Context.shadow(self._context.underlying).socket(zmq.PULL)
        _prepare(self._requests, linger_ms=0)
        _prepare(self._outputs, linger_ms=0)
        self._outputs.bind(folder.outputs)
        self._requests.connect(folder.requests)

    def send(self, frame: Frame) -> None:
        """Queue a message; returns at once."""
        self._requests.send_multipart((self._outgoing.stamp(), encode(frame)))

    @property
    def counts(self) -> Counts:
        """Messages of this end so far."""
        return Counts(self._outgoing.count, self._incoming.count)

    async def receive(self) -> Frame:
        """The next message.

        Raises:
            WireError: something that no engine sends, or something is missing.
        """
        while True:
            stamp, *frames = await self._outputs.recv_multipart()
            if self._incoming.accept(stamp):
                return decode(frames[0] if frames else b"")

    def close(self) -> None:
        """Give the sockets up, once the engine has ended; what is still queued is dropped."""
        self.heartbeat.close()
        self._requests.close()
        self._outputs.close()
        self._context.term()

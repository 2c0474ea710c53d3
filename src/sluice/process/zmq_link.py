"""The two ends of the connection between the server and the engine: PUSH and PULL sockets in a private folder.

The engine binds both sockets and the server connects to them. A connected PUSH socket queues messages without limit and
neither blocks nor drops any, even before the other side exists. The server accepts no connection here: without a free
file descriptor libzmq aborts the process that accepts, but repeats a connection that fails. The engine sends one
message a step, however many requests run. A message is one frame of `wire`. Each engine has a folder of its own
(`socket_folder`), so no message of another engine arrives; the heartbeat is in the same folder.
"""

from __future__ import annotations

import asyncio
import math
import os
import queue
import threading
from collections.abc import Sequence
from contextlib import ExitStack, closing, suppress

import zmq
import zmq.asyncio

from sluice.engine.heartbeat import Phase
from sluice.engine.messages import FromServer, Message, Stats
from sluice.process.heartbeat import SharedHeartbeat
from sluice.process.socket_folder import SocketFolder
from sluice.process.wire import (
    Frame,
    SharedFields,
    Start,
    SubmitDelta,
    WireError,
    decode,
    encode,
    encode_outputs,
    portions,
)
from sluice.types import Output, Submit

TICK_MS = 1000
"""Time between two ticks of an engine that waits for messages."""
RECONNECT_MS = 20
"""Time between two attempts of the server to connect to an engine that has not bound its sockets yet."""


class Mailbox:
    """A queue of messages from other threads, with a file descriptor that is readable while it is not empty."""

    def __init__(self) -> None:
        self._messages: queue.SimpleQueue[Message] = queue.SimpleQueue()
        self._read, self._write = os.pipe()
        os.set_blocking(self._read, False)
        os.set_blocking(self._write, False)
        self._lock = threading.Lock()
        """Held while a byte is written: after `close`, another file may have got the same descriptor."""
        self._is_open = True

    def fileno(self) -> int:
        return self._read

    def post(self, message: Message) -> None:
        """Add a message, from any thread. After `close`, drop it."""
        with self._lock:
            if self._is_open:
                self._messages.put(message)
                self._notify()

    def take(self) -> list[Message]:
        """Remove and return all messages, in order, without blocking."""
        with suppress(BlockingIOError):
            os.read(self._read, 1 << 16)
        messages = []
        with suppress(queue.Empty):
            while True:
                messages.append(self._messages.get_nowait())
        return messages

    def close(self) -> None:
        """Close the descriptors. A second call does nothing."""
        with self._lock:
            if self._is_open:
                self._is_open = False
                os.close(self._read)
                os.close(self._write)

    def _notify(self) -> None:
        with suppress(BlockingIOError):  # the pipe is full, so it is readable already
            os.write(self._write, b"\0")


class _End:
    """The parts that both ends have.

    Args:
        linger_ms: how long `close` waits until queued messages are sent.

    Raises:
        OSError: the heartbeat cannot be opened, or there is no file descriptor or memory for a socket.
    """

    _receiver: zmq.Socket[bytes] | zmq.asyncio.Socket

    def __init__(self, folder: SocketFolder, *, linger_ms: int) -> None:
        self.folder = folder
        with ExitStack() as undo:
            try:
                self.heartbeat = undo.enter_context(closing(SharedHeartbeat.open(folder.heartbeat)))
                self._context = zmq.Context()
                undo.callback(self._context.term)
                self._receiver = undo.enter_context(closing(self._new_receiver()))
                self._sender = undo.enter_context(closing(self._context.socket(zmq.PUSH)))
                for socket in (self._receiver, self._sender):  # no limit: no message is dropped and no sender waits
                    socket.set(zmq.SNDHWM, 0)
                    socket.set(zmq.RCVHWM, 0)
                    socket.set(zmq.LINGER, linger_ms)
                    socket.set(zmq.RECONNECT_IVL, RECONNECT_MS)
                self._join(folder)
            except zmq.ZMQError as error:
                raise OSError(error.errno, error.strerror) from error
            self._opened = undo.pop_all()

    def _new_receiver(self) -> zmq.Socket[bytes] | zmq.asyncio.Socket:
        raise NotImplementedError

    def _join(self, folder: SocketFolder) -> None:
        """Bind or connect the sockets."""
        raise NotImplementedError

    def close(self) -> None:
        """Close the sockets and the heartbeat. A second call does nothing."""
        self._opened.close()


class ZmqLink(_End):
    """The engine's end: a `Link` (see `engine.protocols`) that ticks every second while it waits for messages.

    `close` waits until queued messages are sent, for at most a second.
    """

    _receiver: zmq.Socket[bytes]

    def __init__(self, folder: SocketFolder) -> None:
        super().__init__(folder, linger_ms=1000)
        self._shared = SharedFields()
        self._posted = Mailbox()
        self._arrivals = zmq.Poller()
        self._arrivals.register(self._receiver, zmq.POLLIN)
        self._arrivals.register(self._posted.fileno(), zmq.POLLIN)

    def _new_receiver(self) -> zmq.Socket[bytes]:
        return self._context.socket(zmq.PULL)

    def _join(self, folder: SocketFolder) -> None:
        self._receiver.bind(folder.requests)
        self._sender.bind(folder.outputs)

    def receive_start(self) -> Start:
        """Wait for the first message.

        Raises:
            WireError: it is not a `Start`.
        """
        frame = decode(self._receiver.recv())
        if not isinstance(frame, Start):
            raise WireError(f"the first message must be a Start, got {frame!r}")
        return frame

    def receive(self, *, block: bool, timeout: float | None = None) -> list[Message]:
        """Return the messages that have arrived, in order, posted ones first. With `block`, wait for at least one, but
        for no longer than `timeout` seconds.

        Raises:
            WireError: a message is none that an engine accepts.
        """
        self.heartbeat.tick(Phase.BUSY)
        if block:
            self._wait(timeout)
        messages: list[Message] = self._posted.take()
        while True:
            try:
                frame = decode(self._receiver.recv(zmq.NOBLOCK))
            except zmq.Again:
                return messages
            if isinstance(frame, Submit | SubmitDelta):
                frame = self._shared.restore(frame)
            if not isinstance(frame, FromServer):
                raise WireError(f"not a message to an engine: {frame!r}")
            messages.append(frame)

    def post(self, message: Message) -> None:
        """Add a message to those that `receive` returns, from any thread of this process."""
        self._posted.post(message)

    def _wait(self, timeout: float | None) -> None:
        """Wait for a message, ticking every second."""
        left = math.inf if timeout is None else timeout * 1000
        while not self._arrivals.poll(math.ceil(min(TICK_MS, left))):
            self.heartbeat.tick(Phase.IDLE)
            left -= TICK_MS
            if left <= 0:
                return

    def send(self, outputs: Sequence[Output]) -> None:
        """Queue the outputs of a step, in several messages if they are long, and return at once."""
        for portion in portions(outputs):
            self._sender.send(encode_outputs(portion))

    def answer(self, stats: Stats) -> None:
        """Queue the answer to a query, and return at once."""
        self.send_frame(stats)

    def send_frame(self, frame: Frame) -> None:
        """Queue a message other than outputs, and return at once."""
        self._sender.send(encode(frame))

    def close(self) -> None:
        super().close()
        self._posted.close()


class ZmqChannel(_End):
    """The server's end, for use in an event loop. `close` drops queued messages."""

    _receiver: zmq.asyncio.Socket

    def __init__(self, folder: SocketFolder) -> None:
        super().__init__(folder, linger_ms=0)
        self._shared = SharedFields()
        self.num_received = 0
        """Messages from the engine so far."""

    def _new_receiver(self) -> zmq.asyncio.Socket:
        return zmq.asyncio.Context.shadow(self._context.underlying).socket(zmq.PULL)

    def _join(self, folder: SocketFolder) -> None:
        self._sender.connect(folder.requests)
        self._receiver.connect(folder.outputs)

    def send(self, frame: Frame) -> None:
        """Queue a message, and return at once."""
        if isinstance(frame, Submit):
            frame = self._shared.omit(frame)
        self._sender.send(encode(frame))

    async def receive(self) -> Frame:
        """Wait for the next message and return it.

        Raises:
            WireError: it cannot be decoded.
            asyncio.CancelledError: the channel is closed, before or meanwhile.
        """
        if self._receiver.closed:
            raise asyncio.CancelledError
        data = await self._receiver.recv()
        self.num_received += 1
        return decode(data)

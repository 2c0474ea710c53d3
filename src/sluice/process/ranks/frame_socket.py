"""Connections between ranks: frames over a stream socket, sent by a thread, so that no sender waits for a reader."""

from __future__ import annotations

import hmac
import math
import queue
import secrets
import select
import socket
import threading
import time
from collections.abc import Callable
from contextlib import suppress

from sluice.parallel.group import GroupError
from sluice.types.framing import FrameReader, TooLong, send_frame

MAX_BYTES = 1 << 30
"""Most bytes of a frame. Larger ones are no frames."""
MAX_UNKNOWN_BYTES = 64
"""Most bytes of a frame from an end that has not proved yet that it knows the token."""
REFUSAL = b""
"""The leader's answer to a wrong proof. It is no proof either."""
CLOSE_SECONDS = 1.0
"""Time to send what is queued when a socket is closed."""
KEEPALIVE_SECONDS = 10
"""Seconds between two probes of a machine that is silent, and until the first one. Three that fail end the
connection."""
UNANSWERED_SECONDS = 4 * KEEPALIVE_SECONDS
"""Seconds after which a connection ends if its machine does not acknowledge what it was sent: nothing is probed
then."""


class WrongToken(GroupError):
    """The other end has another token."""


class FrameSocket:
    """One end of a connection. One thread receives; any thread may send, and close.

    Args:
        connected: the socket, which belongs to this object from now on.
        name: of the other end, for errors: "rank 1".
    """

    def __init__(self, connected: socket.socket, name: str) -> None:
        self.name = name
        self._socket = connected
        self.frames = FrameReader(MAX_BYTES)
        self._queue: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        self._problem: str | None = None
        self._keep_alive()
        self._sender = threading.Thread(target=self._send_queued, name=f"send-to-{name}", daemon=True)
        self._sender.start()

    def fileno(self) -> int:
        return self._socket.fileno()

    def send(self, frame: bytes) -> None:
        """Queue a frame, and return at once.

        Raises:
            GroupError: the other end was found to have ended.
        """
        if self._problem is not None:
            raise GroupError(self._problem)
        self._queue.put(frame)

    def receive(self) -> bytes:
        """Wait for the next frame.

        Raises:
            GroupError: the other end has ended.
        """
        frame = self.receive_within(math.inf)
        assert frame is not None
        return frame

    def receive_within(self, seconds: float) -> bytes | None:
        """Return the next frame, or None if it has not come within some seconds.

        Raises:
            GroupError: the other end has ended, or sends no frames.
        """
        poller, until = select.poll(), time.monotonic() + seconds
        poller.register(self._socket, select.POLLIN)
        while (frame := self._next_frame()) is None:
            left = until - time.monotonic()
            try:
                if not poller.poll(None if left == math.inf else max(0.0, left * 1000)):
                    return None
                data = self._socket.recv(1 << 18)
            except OSError as error:
                raise GroupError(f"{self.name} cannot be reached: {error.strerror}") from error
            if not data:
                raise GroupError(f"{self.name} has ended")
            self.frames.add(data)
        return frame

    def close(self) -> None:
        """Send what is queued, within a second, and close. May be called again."""
        self._queue.put(None)
        self._sender.join(CLOSE_SECONDS)
        self._problem = self._problem or f"the connection to {self.name} is closed"
        with suppress(OSError):  # the other end has closed it
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()

    def _next_frame(self) -> bytes | None:
        try:
            return self.frames.take()
        except TooLong as error:
            raise GroupError(f"{self.name} sent {error}") from error

    def _send_queued(self) -> None:
        while (frame := self._queue.get()) is not None:
            try:
                send_frame(self._socket, frame)
            except OSError as error:
                self._problem = f"{self.name} cannot be reached: {error.strerror}"
                return

    def _keep_alive(self) -> None:
        """Let the system notice a machine that has gone without a word."""
        if self._socket.family == socket.AF_UNIX:
            return
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for name in ("TCP_KEEPIDLE", "TCP_KEEPINTVL"):
            if hasattr(socket, name):
                self._socket.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), KEEPALIVE_SECONDS)
        if hasattr(socket, "TCP_KEEPCNT"):
            self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 3)
        if hasattr(socket, "TCP_USER_TIMEOUT"):
            self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, 1000 * UNANSWERED_SECONDS)


def prove(connection: FrameSocket, token: bytes, *, leads: bool, seconds: float) -> None:
    """Prove to the other end that this one knows the token, and let it prove the same.

    Each end sends a random challenge, and answers that of the other one with an HMAC-SHA256 of both, under the token
    and with its own role, so that no answer can be sent back. The token itself never travels.

    Args:
        leads: whether this is the leader's end; the other one is that of a rank.
        seconds: that the other end may take.

    Raises:
        WrongToken: it does not know the token.
        GroupError: it does not answer.
    """
    connection.frames.longest = MAX_UNKNOWN_BYTES
    deadline = time.monotonic() + seconds
    own = secrets.token_bytes(32)
    connection.send(own)
    other = _answer(connection, deadline)
    if other == own:
        raise GroupError(f"{connection.name} sent back what it got")
    leaders, ranks = (own, other) if leads else (other, own)

    def proof(role: bytes) -> bytes:
        return hmac.digest(token, role + leaders + ranks, "sha256")

    mine, expected = (b"leader", b"rank") if leads else (b"rank", b"leader")
    if leads:  # it answers an end that has proved itself
        try:
            _check(connection, proof(expected), deadline)
        except WrongToken:
            connection.send(REFUSAL)
            raise
        connection.send(proof(mine))
    else:
        connection.send(proof(mine))
        _check(connection, proof(expected), deadline)
    connection.frames.longest = MAX_BYTES


def _check(connection: FrameSocket, expected: bytes, deadline: float) -> None:
    if not hmac.compare_digest(_answer(connection, deadline), expected):
        raise WrongToken(f"{connection.name} does not know the token")


def _answer(connection: FrameSocket, deadline: float) -> bytes:
    frame = connection.receive_within(max(0.0, deadline - time.monotonic()))
    if frame is None:
        raise GroupError(f"{connection.name} does not answer")
    return frame


def watch_ends(connections: list[FrameSocket], ended: Callable[[FrameSocket], None]) -> None:
    """Call `ended` with the first connection whose other end closes, from a thread. Reads nothing."""

    def watch() -> None:
        poller = select.poll()
        by_file = {connection.fileno(): connection for connection in connections}
        for file in by_file:
            poller.register(file, select.POLLRDHUP)
        ((file, _), *_) = poller.poll()
        ended(by_file[file])

    threading.Thread(target=watch, name="watch-ranks", daemon=True).start()

"""HTTP connections with time limits: a request's head must arrive within one, and the rest of its body within another
after the answer."""

from __future__ import annotations

import asyncio
import fcntl
import sys
import termios
from functools import partial
from typing import Any

import h11
import msgspec
import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol
from uvicorn.server import ServerState

from sluice.http.base.errors import bad_request
from sluice.http.edge.one_by_one import CALL, OneByOne

HEAD_SECONDS = 20.0
"""Seconds for the head of a request, from the connection or from its first byte on. A body has its own limit
(`body`)."""
REFUSED_HEAD_SECONDS = 1.0
"""`HEAD_SECONDS` of a connection that is one too many."""
LINGER_SECONDS = 10.0
"""Seconds for the rest of a body after the answer. A client that still sends when the connection is closed may not see
the answer."""
STALL_SECONDS = 120.0
"""Seconds after which a connection is closed whose client takes nothing of its answer."""


class TimeLimitedProtocol(H11Protocol):
    """uvicorn's HTTP/1.1 with limits on the time of a head, and of the rest of a body that was answered already.

    uvicorn has one for idle connections only, so a client that sends a byte now and then would hold its connection,
    and a file descriptor, forever, even without a key.
    """

    head_seconds = HEAD_SECONDS
    linger_seconds = LINGER_SECONDS
    _head_timer: asyncio.TimerHandle | None = None
    _body_timer: asyncio.TimerHandle | None = None
    _unsent = (0, 0)
    """Bytes of an answer in this process and in the kernel when `check_stall` was called, and since when they are as
    many."""
    _unsent_since = 0.0
    _early: bytearray | None = None
    """What has arrived of a call that has not begun."""

    def __init__(
        self, config: uvicorn.Config, server_state: ServerState, app_state: dict[str, Any], calls: OneByOne
    ) -> None:
        super().__init__(config, server_state, app_state)
        self._calls = calls

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._head_timer = self.loop.call_later(self.head_seconds, transport.close)

    def data_received(self, data: bytes) -> None:
        if self._early is not None:
            self._early += data
        elif data.startswith(CALL) and self.conn.their_state is h11.IDLE:
            self._unset_keepalive_if_required()
            self._early = bytearray(data)
            self.flow.pause_reading()
            self._calls.add(self._begin_call)
        else:
            self._received(data)

    def _begin_call(self) -> None:
        data, self._early = bytes(self._early or b""), None
        if not self.transport.is_closing():
            self.flow.resume_reading()
            self._received(data)

    def _received(self, data: bytes) -> None:
        super().data_received(data)
        if self.conn.their_state is not h11.IDLE:
            self._cancel_head_timer()
        elif self._head_timer is None:
            self._head_timer = self.loop.call_later(self.head_seconds, self.transport.close)

    def _cancel_head_timer(self) -> None:
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None

    def on_response_complete(self) -> None:
        super().on_response_complete()
        self._cancel_body_timer()
        if self._is_receiving_the_rest():
            self._body_timer = self.loop.call_later(self.linger_seconds, self._close_unless_received)

    def _is_receiving_the_rest(self) -> bool:
        """The request was answered, and has not arrived as a whole."""
        return self.conn.our_state is h11.DONE and self.conn.their_state is h11.SEND_BODY

    def _close_unless_received(self) -> None:
        if self._is_receiving_the_rest():
            self.transport.close()

    def _cancel_body_timer(self) -> None:
        if self._body_timer is not None:
            self._body_timer.cancel()

    def connection_lost(self, exc: Exception | None) -> None:
        self._cancel_head_timer()
        self._cancel_body_timer()
        if self.cycle is None or self.cycle.response_complete:
            super().connection_lost(exc)
        else:  # the end of a call takes as long as its beginning, and thousands of clients may leave at once
            self._calls.add(partial(super().connection_lost, exc))

    def check_stall(self, now: float) -> None:
        """Close the connection if its client has taken nothing for too long. To be called now and then.

        Without a limit it would hold its connection, and an answer that grows, for ever, even after `close`. A client
        that reads slowly empties the kernel's buffer for minutes before this process can send anything.

        Args:
            now: seconds.
        """
        buffered = self.transport.get_write_buffer_size()
        unsent = (buffered, kernel_unsent(self.transport) if buffered else 0)
        if buffered == 0 or unsent != self._unsent:
            self._unsent, self._unsent_since = unsent, now
        elif now - self._unsent_since >= STALL_SECONDS:
            self.transport.abort()

    def send_400_response(self, msg: str) -> None:
        """Answer what is no HTTP in the shape of every other refusal, unless an answer was begun already."""
        if self.conn.our_state not in (h11.IDLE, h11.SEND_RESPONSE):
            self.transport.close()
            return
        body = msgspec.json.encode(bad_request(msg).body())
        headers = [
            (b"content-type", b"application/json"),
            (b"content-length", str(len(body)).encode()),
            (b"connection", b"close"),
        ]
        for event in (
            h11.Response(status_code=400, headers=headers, reason=b"Bad Request"),
            h11.Data(data=body),
            h11.EndOfMessage(),
        ):
            self.transport.write(self.conn.send(event) or b"")
        self.transport.close()


class RefusedProtocol(TimeLimitedProtocol):
    """A connection that is one too many: it has little time."""

    head_seconds = REFUSED_HEAD_SECONDS


def kernel_unsent(transport: asyncio.BaseTransport) -> int:
    """Return how many bytes the kernel holds that the other end of a connection has not received; 0 if not on Linux."""
    connection = transport.get_extra_info("socket")
    if sys.platform != "linux" or connection is None:
        return 0
    return int.from_bytes(fcntl.ioctl(connection.fileno(), termios.TIOCOUTQ, bytes(4)), sys.byteorder)  # SIOCOUTQ

"""HTTP connections with time limits: a request's head must arrive within one, and the rest of its body within another
after the answer."""

from __future__ import annotations

import asyncio
import json

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

from sluice.http.errors import bad_request

HEAD_SECONDS = 20.0
"""For the head of a request, from the connection or from its first byte on. A body has its own limit (`body`)."""
LINGER_SECONDS = 10.0
"""For the rest of a body after the answer. A client that still sends when the connection is closed may not see it."""


class TimeLimitedProtocol(H11Protocol):
    """uvicorn's HTTP/1.1 with limits on the time of a head, and of the rest of a body that was answered already.

    uvicorn has one for idle connections only, so a client that sends a byte now and then would hold its connection,
    and a file descriptor, forever, even without a key.
    """

    head_seconds = HEAD_SECONDS
    linger_seconds = LINGER_SECONDS
    _head_timer: asyncio.TimerHandle | None = None
    _body_timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._head_timer = self.loop.call_later(self.head_seconds, transport.close)

    def data_received(self, data: bytes) -> None:
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
        super().connection_lost(exc)

    def send_400_response(self, msg: str) -> None:
        """Answer what is no HTTP in the shape of every other refusal, unless an answer was begun already."""
        if self.conn.our_state not in (h11.IDLE, h11.SEND_RESPONSE):
            self.transport.close()
            return
        body = json.dumps(bad_request(msg).body()).encode()
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

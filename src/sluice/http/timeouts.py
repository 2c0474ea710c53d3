"""HTTP connections that are not waited for for ever: a request's head must arrive within a time, and the rest of its
body within a time after the answer."""

from __future__ import annotations

import asyncio
import json

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

from sluice.http.errors import bad_request

HEAD_SECONDS = 20.0
"""For the head of a request, from the connection or from its first byte on. A body has its own limit (`body`)."""
LINGER_SECONDS = 10.0
"""For the rest of a body after the answer. Whoever is still sending when the connection is closed may not see it."""


class PatientProtocol(H11Protocol):
    """uvicorn's HTTP/1.1, with a limit on the time a head may take, or a body that nobody wants any more. It knows one
    for idle connections only, so a client that sends a byte now and then would hold its connection, and a file
    descriptor, for ever: without a key, too."""

    head_seconds = HEAD_SECONDS
    linger_seconds = LINGER_SECONDS
    _timer: asyncio.TimerHandle | None = None
    _lingering: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._timer = self.loop.call_later(self.head_seconds, self._give_up)

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if self.conn.their_state is not h11.IDLE:
            self._stop_waiting()
        elif self._timer is None:
            self._timer = self.loop.call_later(self.head_seconds, self._give_up)

    def on_response_complete(self) -> None:
        super().on_response_complete()
        if self._is_dripping():
            self._stop_lingering()
            self._lingering = self.loop.call_later(self.linger_seconds, self._stop_listening)

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_waiting()
        self._stop_lingering()
        super().connection_lost(exc)

    def send_400_response(self, msg: str) -> None:
        """What is no HTTP is refused in the shape of every other refusal, unless an answer has been given already."""
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

    def _stop_waiting(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _is_dripping(self) -> bool:
        """The request was answered, and is not all there."""
        return self.conn.our_state is h11.DONE and self.conn.their_state is h11.SEND_BODY

    def _stop_lingering(self) -> None:
        if self._lingering is not None:
            self._lingering.cancel()
            self._lingering = None

    def _stop_listening(self) -> None:
        self._lingering = None
        if self._is_dripping():
            self.transport.close()

    def _give_up(self) -> None:
        self._timer = None
        self.transport.close()

"""HTTP connections that are not waited for for ever: a request's head must arrive within a time, too."""

from __future__ import annotations

import asyncio
import json

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

from sluice.server.errors import bad_request

HEAD_SECONDS = 20.0
"""For the head of a request, from the connection or from its first byte on. A body has its own limit (`body`)."""


class PatientProtocol(H11Protocol):
    """uvicorn's HTTP/1.1, with a limit on the time a head may take. It knows one for idle connections only, so a client
    that sends a header a minute would hold its connection, and a file descriptor, for ever."""

    head_seconds = HEAD_SECONDS
    _timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._timer = self.loop.call_later(self.head_seconds, self._give_up)

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if self.conn.their_state is not h11.IDLE:
            self._stop_waiting()
        elif self._timer is None:
            self._timer = self.loop.call_later(self.head_seconds, self._give_up)

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_waiting()
        super().connection_lost(exc)

    def send_400_response(self, msg: str) -> None:
        """What is no HTTP is refused in the shape of every other refusal."""
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

    def _give_up(self) -> None:
        self._timer = None
        self.transport.close()

"""One HTTP exchange on a connection of its own: bytes out, bytes and the times they came in.

Nothing is parsed while the answer streams but its end: a client that decodes JSON between two tokens takes the
machine's time from the server it measures. A connection for each request is what a new client costs a server, and
keeps one request's packets from waiting behind another's.
"""

from __future__ import annotations

import asyncio
import os
import ssl
from collections.abc import Callable
from dataclasses import dataclass, field

from sluice.bench.answers import Failure
from sluice.bench.timing import Timer
from sluice.bench.url import Server

HEAD_END = b"\r\n\r\n"
CHUNKED_END = b"0\r\n\r\n"
DONE = (b"data: [DONE]", b"data:[DONE]")


@dataclass(slots=True)
class RawExchange:
    """What came over the wire. Times are seconds of the client's clock."""

    sent: float
    reads: list[tuple[float, bytes]] = field(default_factory=list)
    ended: float = 0.0
    failure: Failure | None = None
    """Of the connection; what the answer itself says is not looked at."""

    @property
    def accepted(self) -> float | None:
        return self.reads[0][0] if self.reads else None


async def exchange(server: Server, request: bytes, timer: Timer, *, timeout: float) -> RawExchange:
    """Connect, send, and read to the end of the answer. Never raises for what the network or the server does."""
    raw = RawExchange(timer.now())
    loop = asyncio.get_running_loop()
    done: asyncio.Future[None] = loop.create_future()
    transport: asyncio.Transport | None = None
    try:
        async with asyncio.timeout(timeout):
            transport, _ = await loop.create_connection(
                lambda: _Reader(raw, request, timer.now, done),
                server.address,
                server.port,
                ssl=server.tls,
                server_hostname=server.host if server.tls else None,
            )
            await done
    except TimeoutError:
        raw.failure = Failure("timeout", f"no end within {timeout:g} s")
    except OSError as error:
        raw.failure = Failure("connection", explain(error))
    finally:
        raw.ended = timer.now()
        if transport is not None:
            transport.abort()
    return raw


def explain(error: OSError) -> str:
    """In a few words; asyncio's own has numbers and addresses in it."""
    if isinstance(error, ssl.SSLError):
        return f"TLS: {error.reason or error}"
    return os.strerror(error.errno).lower() if error.errno else str(error)


class _Reader(asyncio.Protocol):
    """Writes the request, notes every read, and looks for the end of the answer."""

    def __init__(self, raw: RawExchange, request: bytes, now: Callable[[], float], done: asyncio.Future[None]) -> None:
        self._raw = raw
        self._request = request
        self._now = now
        self._done = done
        self._head: bytes | None = b""
        self._left: int | None = None
        """Bytes of the body still to come, if the head says how many."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.WriteTransport)
        transport.write(self._request)

    def data_received(self, data: bytes) -> None:
        self._raw.reads.append((self._now(), data))
        if self._head is not None:
            self._head += data
            head, found, body = self._head.partition(HEAD_END)
            if not found:
                return
            self._head = None
            self._left = _content_length(head)
            data = body
        if self._left is not None:
            self._left -= len(data)
            is_over = self._left <= 0
        else:
            # The marker may be cut in two by a read; then the server's closing of the connection is the end.
            is_over = data.endswith(CHUNKED_END) or any(done in data[-32:] for done in DONE)
        if is_over:
            self._finish()

    def connection_lost(self, error: Exception | None) -> None:
        if error is not None and not self._done.done():
            self._raw.failure = Failure(
                "connection", f"the connection broke: {explain(error) if isinstance(error, OSError) else error}"
            )
        self._finish()

    def _finish(self) -> None:
        if not self._done.done():
            self._done.set_result(None)


def _content_length(head: bytes) -> int | None:
    for line in head.split(b"\r\n")[1:]:
        name, _, value = line.partition(b":")
        if name.lower() == b"content-length" and value.strip().isdigit():
            return int(value)
    return None

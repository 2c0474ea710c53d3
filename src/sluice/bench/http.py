"""One HTTP exchange on a connection of its own: a request as bytes, and the answer's bytes with the times they came.

The client notes the time of every read and parses nothing while the answer streams, except for its end: a client that
decodes JSON between two tokens takes the machine's time from the server it measures. A connection for each request is
what a new client costs a server, and keeps one request's packets from waiting behind another's.
"""

from __future__ import annotations

import asyncio
import io
import os
import socket
import ssl
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from http.client import HTTPException, HTTPResponse
from typing import Any, NamedTuple

from sluice.bench import BenchError
from sluice.bench.driver import Timer
from sluice.bench.records import Failure
from sluice.config import ConfigError
from sluice.config.server_url import ServerURL

HEAD_END = b"\r\n\r\n"
CHUNKED_END = b"0\r\n\r\n"
DONE = (b"data: [DONE]", b"data:[DONE]")

Read = tuple[float, bytes]
"""Bytes, and the time they came."""


@dataclass(frozen=True, slots=True)
class Server:
    """A server's address. Its name is resolved once: a look-up belongs to no request's latency."""

    url: str
    """The server's address, without "/v1" and without a slash at the end."""
    host: str
    address: str
    port: int
    path: str
    """What comes before "/v1" in every path."""
    tls: ssl.SSLContext | None
    api_key: str | None = None

    def request(self, method: str, path: str, body: bytes = b"") -> bytes:
        """Return an HTTP/1.1 request that asks the server to close the connection after its answer."""
        netloc = f"[{self.host}]" if ":" in self.host else self.host
        lines = [
            f"{method} {self.path}{path} HTTP/1.1",
            f"Host: {netloc}:{self.port}",
            "Connection: close",
            "Accept: text/event-stream, application/json",
            "User-Agent: sluice-bench",
        ]
        if self.api_key is not None:
            lines.append(f"Authorization: Bearer {self.api_key}")
        if body:
            lines += ["Content-Type: application/json", f"Content-Length: {len(body)}"]
        return "\r\n".join([*lines, "", ""]).encode() + body


async def find_server(url: str, *, api_key: str | None = None) -> Server:
    """Resolve a server's name.

    Args:
        url: http://host:port, with or without a path and "/v1".

    Raises:
        ConfigError: this is no such URL, or the key cannot be sent.
        BenchError: the name does not resolve.
    """
    asked = ServerURL.parse(url)
    if api_key is not None and not (api_key.isascii() and api_key.isprintable()):
        raise ConfigError("--api-key must be printable ASCII")
    try:
        found = await asyncio.get_running_loop().getaddrinfo(asked.host, asked.port, type=socket.SOCK_STREAM)
    except OSError as error:
        raise BenchError(f"cannot find {asked.host}: {error.strerror or error}") from error
    return Server(
        url=asked.url,
        host=asked.host,
        address=await _first_that_answers([str(entry[4][0]) for entry in found], asked.port),
        port=asked.port,
        path=asked.path,
        tls=ssl.create_default_context() if asked.is_tls else None,
        api_key=api_key,
    )


async def _first_that_answers(addresses: list[str], port: int) -> str:
    """Return the address to use: "localhost" may be two, and the server listen on one. The first if none answers."""
    if len(set(addresses)) == 1:
        return addresses[0]
    for address in dict.fromkeys(addresses):
        try:
            _, writer = await asyncio.open_connection(address, port)
        except OSError:
            continue
        writer.close()
        await writer.wait_closed()
        return address
    return addresses[0]


@dataclass(slots=True)
class RawExchange:
    """The bytes that came over the wire. Times are seconds of the client's clock."""

    sent: float
    reads: list[Read] = field(default_factory=list)
    ended: float = 0.0
    failure: Failure | None = None
    """A failure of the connection. The answer's own content is not looked at."""

    @property
    def accepted(self) -> float | None:
        return self.reads[0][0] if self.reads else None


async def exchange(server: Server, request: bytes, timer: Timer, *, timeout: float) -> RawExchange:  # noqa: ASYNC109
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
        raw.failure = Failure("connection", _explain(error))
    finally:
        raw.ended = timer.now()
        if transport is not None:
            transport.abort()
    return raw


def _explain(error: Exception) -> str:
    """Return the error in a few words; asyncio's own message has numbers and addresses in it."""
    if isinstance(error, ssl.SSLError):
        return f"TLS: {error.reason or error}"
    return os.strerror(error.errno).lower() if isinstance(error, OSError) and error.errno else str(error)


class _Reader(asyncio.Protocol):
    """Writes the request, notes every read, and looks for the end of the answer."""

    def __init__(self, raw: RawExchange, request: bytes, now: Callable[[], float], done: asyncio.Future[None]) -> None:
        self._raw = raw
        self._request = request
        self._now = now
        self._done = done
        self._head: bytes | None = b""
        """Bytes of the head so far; None once it is complete."""
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
            self._raw.failure = Failure("connection", f"the connection broke: {_explain(error)}")
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


class Head(NamedTuple):
    """The head of an answer."""

    status: int
    content_type: str
    """Content type in lower case and without parameters; empty if the server sends none."""


class _ReadsAsSocket(io.RawIOBase):
    """The reads of an exchange in the place of a socket. `at` is the time of the latest bytes handed out."""

    def __init__(self, reads: Sequence[Read]) -> None:
        self.at = 0.0
        self._reads = iter(reads)
        self._rest = b""

    def makefile(self, mode: str) -> io.BufferedReader:
        return io.BufferedReader(self)

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        if not self._rest:
            self.at, self._rest = next(self._reads, (self.at, b""))
        taken, self._rest = self._rest[: len(buffer)], self._rest[len(buffer) :]
        buffer[: len(taken)] = taken
        return len(taken)


def parse_response(reads: Sequence[Read]) -> tuple[Head | None, list[Read]]:
    """Return the head, None if it is incomplete or no HTTP, and the body with the times its parts came.

    Chunked coding is undone. What makes no sense ends the body.
    """
    head, body = None, list[Read]()
    if HEAD_END not in b"".join(data for _, data in reads):
        return head, body
    source = _ReadsAsSocket(reads)
    response = HTTPResponse(source)  # type: ignore[arg-type]
    try:
        response.begin()
        content_type = response.getheader("content-type", "")
        head = Head(response.status, content_type.partition(";")[0].strip().lower())
        while data := response.read1():
            body.append((source.at, data))
    except HTTPException:
        pass
    return head, body


class ServerSentEvent(NamedTuple):
    """The data of one server-sent event. `at` is when its last byte came."""

    at: float
    data: bytes


def events(body: Sequence[Read]) -> list[ServerSentEvent]:
    """Return the complete events. Comments and other fields are left out; several data lines are joined."""
    found = []
    lines: list[bytes] = []
    rest = b""
    for at, data in body:
        *complete, rest = (rest + data).split(b"\n")
        for line in complete:
            line = line.removesuffix(b"\r")
            if line.startswith(b"data:"):
                lines.append(line[5:].removeprefix(b" "))
            elif not line and lines:
                found.append(ServerSentEvent(at, b"\n".join(lines)))
                lines = []
    return found

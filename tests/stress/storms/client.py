"""Sends one request on a connection of its own: reads all of the answer, reads it slowly, or leaves in its middle."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Mapping
from dataclasses import dataclass, field

import h11

READ_BYTES, SLOW_READ_BYTES = 1 << 16, 600
SLOW_BUFFER = 2048
"""Bytes of a slow reader's buffer in the system, which doubles it."""
EVENT_END = b"\n\n"


@dataclass(frozen=True)
class Manner:
    """How a client reads an answer."""

    label: str = "reads"
    pause: float = 0.0
    """Seconds between two small reads; 0 reads as fast as it can."""
    leaves_after: int | None = None
    """Events of a stream, or for other answers 0, after which the client closes the connection."""


@dataclass
class Reply:
    """An answer as it came."""

    status: int = 0
    """HTTP status; 0 if there is none."""
    headers: Mapping[str, str] = field(default_factory=dict)
    body: bytes = b""
    is_complete: bool = False
    """The answer's end has come."""
    has_left: bool = False
    """The client left before the end."""
    is_refused: bool = False
    """There was no connection."""
    error: str = ""
    """A failure of the connection."""


async def send(port: int, method: str, path: str, body: bytes = b"", manner: Manner | None = None) -> Reply:
    """Return the reply to one request. A failure of the connection is part of the reply."""
    manner, reply = manner or Manner(), Reply()
    try:
        reader, writer = await _connect(port, is_slow=manner.pause > 0)
    except OSError as error:
        reply.is_refused, reply.error = True, f"cannot connect: {error}"
        return reply
    connection = h11.Connection(h11.CLIENT)
    headers = [("Host", "127.0.0.1"), ("Connection", "close"), ("Content-Length", str(len(body)))]
    try:
        writer.write(connection.send(h11.Request(method=method, target=path, headers=headers)) or b"")
        writer.write(connection.send(h11.Data(body)) or b"")
        connection.send(h11.EndOfMessage())
        await writer.drain()
        await _read(reader, connection, manner, reply)
    except (OSError, h11.RemoteProtocolError) as error:
        reply.error = f"{type(error).__name__}: {error}"
    finally:
        writer.transport.abort()
    return reply


async def _connect(port: int, *, is_slow: bool) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    connection = socket.socket()
    try:
        connection.setblocking(False)
        if is_slow:
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, SLOW_BUFFER)
        await asyncio.get_running_loop().sock_connect(connection, ("127.0.0.1", port))
        return await asyncio.open_connection(sock=connection, limit=SLOW_READ_BYTES if is_slow else 1 << 16)
    except OSError:
        connection.close()
        raise


async def _read(reader: asyncio.StreamReader, connection: h11.Connection, manner: Manner, reply: Reply) -> None:
    """Read the answer into `reply`, to its end or until the client leaves."""
    body = bytearray()
    while True:
        match connection.next_event():
            case h11.NEED_DATA:
                if manner.leaves_after == 0:
                    reply.has_left = True
                    return
                if manner.pause:
                    await asyncio.sleep(manner.pause)
                connection.receive_data(await reader.read(SLOW_READ_BYTES if manner.pause else READ_BYTES))
            case h11.Response() as head:
                reply.status = head.status_code
                reply.headers = {name.decode().lower(): value.decode() for name, value in head.headers}
            case h11.Data() as data:
                body += data.data
                reply.body = bytes(body)
                if manner.leaves_after is not None and body.count(EVENT_END) >= manner.leaves_after:
                    reply.has_left = True
                    return
            case h11.EndOfMessage():
                reply.is_complete = True
                return
            case h11.ConnectionClosed():
                raise ConnectionResetError("closed before an answer")

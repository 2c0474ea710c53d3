"""Where a server is, and HTTP/1.1 requests to it as bytes."""

from __future__ import annotations

import asyncio
import socket
import ssl
from dataclasses import dataclass
from urllib.parse import urlsplit

from sluice.bench.errors import BenchError
from sluice.config import ConfigError


@dataclass(frozen=True, slots=True)
class Server:
    """A server's address, its name resolved once: a look-up belongs to no request's latency."""

    url: str
    """Without "/v1" and without a slash at the end."""
    host: str
    address: str
    port: int
    path: str
    """What comes before "/v1" in every path."""
    tls: ssl.SSLContext | None
    api_key: str | None = None

    def request(self, method: str, path: str, body: bytes = b"") -> bytes:
        """A request that asks the server to close the connection after its answer."""
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
    """
    Args:
        url: http://host:port, with or without a path and "/v1".

    Raises:
        ConfigError: no URL of that kind, or a key that cannot be sent.
        BenchError: a name that does not resolve.
    """
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError as error:
        raise ConfigError(f"--url must be like http://localhost:8000, got {url!r}: {error}") from error
    if parts.scheme not in ("http", "https") or not parts.hostname or parts.query or not url.isascii() or " " in url:
        raise ConfigError(f"--url must be like http://localhost:8000, got {url!r}")
    if api_key is not None and not (api_key.isascii() and api_key.isprintable()):
        raise ConfigError("--api-key must be printable ASCII")
    tls = ssl.create_default_context() if parts.scheme == "https" else None
    port = port or (443 if tls else 80)
    try:
        loop = asyncio.get_running_loop()
        found = await loop.getaddrinfo(parts.hostname, port, type=socket.SOCK_STREAM)
    except OSError as error:
        raise BenchError(f"cannot find {parts.hostname}: {error.strerror or error}") from error
    path = parts.path.rstrip("/").removesuffix("/v1")
    return Server(
        url=url.rstrip("/").removesuffix("/v1"),
        host=parts.hostname,
        address=await _first_that_answers([str(entry[4][0]) for entry in found], port),
        port=port,
        path=path,
        tls=tls,
        api_key=api_key,
    )


async def _first_that_answers(addresses: list[str], port: int) -> str:
    """The address to use, since "localhost" may be two and the server listen on one; the first if none answers."""
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

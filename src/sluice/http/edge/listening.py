"""The address that a server listens on: its socket, its URL, and a warning if everybody can reach it."""

from __future__ import annotations

import socket
from ipaddress import ip_address


class CannotListen(OSError):
    """The address cannot be listened on; the message is one line for the user."""


def listen(host: str, port: int) -> socket.socket:
    """Return a socket that listens.

    Raises:
        CannotListen: naming the address and what to do.
    """
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        family, _, _, _, address = found[0]
        is_dual = family == socket.AF_INET6 and socket.has_dualstack_ipv6()
        listener = socket.create_server(address, family=family, backlog=2048, dualstack_ipv6=is_dual)
    except (OSError, OverflowError) as error:
        reason = str(error).partition(" (while attempting to bind")[0]  # `create_server` repeats the address
        other = "choose another with --host or --port (make serve PORT=8001)"
        raise CannotListen(f"cannot listen on {host}:{port}: {reason}; {other}") from error
    # Connections inherit it. asyncio sets it for sockets that name their protocol, and this one does not.
    listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return listener


def exposure_warning(address: str, *, has_key: bool) -> str | None:
    """Return a warning if every client that reaches this machine can use the server, else None.

    Args:
        address: IP address that is listened on.
        has_key: clients need an API key.
    """
    if has_key or ip_address(address.partition("%")[0]).is_loopback:
        return None
    return (
        f"listening on {address} without an API key: every client that can reach it can use it and read its metrics;"
        " see docs/security.md"
    )


def url_of(host: str, port: int, *, scheme: str = "http") -> str:
    """Return the URL by which this machine reaches a server that listens on `host`."""
    host = {"0.0.0.0": "127.0.0.1", "::": "::1", "": "127.0.0.1"}.get(host, host)  # noqa: S104 - only named
    return f"{scheme}://[{host}]:{port}" if ":" in host else f"{scheme}://{host}:{port}"

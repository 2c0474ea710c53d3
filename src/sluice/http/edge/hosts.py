"""The Host header: a server on the loopback interface answers only to its own names.

A site whose name resolves to a loopback address (DNS rebinding) lets a browser on this machine call the server as if it
were that site's own. The browser then sends the site's name as Host, so other names than the server's are refused. An
IP address needs no name to be resolved, and `localhost` never resolves to anything else.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from ipaddress import ip_address

from starlette.types import ASGIApp, Receive, Scope, Send

from sluice.config import ServerConfig
from sluice.http.base.auth import OPEN_PATHS
from sluice.http.base.errors import ApiError
from sluice.http.base.options import ANY_HOST, allowed_hosts

HOST = re.compile(r"(\[[^\[\]]+\]|[^:\[\]]+)(?::[0-9]*)?")
"""A name or an address, and perhaps a port."""


def answered_names(server: ServerConfig, address: str) -> frozenset[str] | None:
    """Return the names that a server answers to besides `localhost` and IP addresses; None if it checks none.

    Args:
        address: IP address that is listened on.

    Raises:
        ConfigError: as `allowed_hosts`.
    """
    names = allowed_hosts(server)
    is_loopback = ip_address(address.partition("%")[0]).is_loopback
    if ANY_HOST in names or not (names or is_loopback):
        return None
    return names | {server.host.lower()}


class HostChecked:
    """ASGI middleware that refuses requests for another host's name with 403.

    Args:
        names: accepted besides `localhost`, the names below it and IP addresses.
    """

    def __init__(self, app: ASGIApp, names: Collection[str]) -> None:
        self._app = app
        self._names = frozenset(names)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["path"] in OPEN_PATHS:
            await self._app(scope, receive, send)
            return
        refusal = self._refusal(scope)
        await (self._app if refusal is None else refusal.response(scope["path"]))(scope, receive, send)

    def _refusal(self, scope: Scope) -> ApiError | None:
        hosts = values_of(scope, b"host")
        if len(hosts) == 1 and is_own(host_of(hosts[0]), self._names):
            return None
        message = (
            "the Host header must be localhost, an IP address or one of the names in --allowed-hosts, which keeps"
            f" sites from taking this server's place (DNS rebinding); got {shown(hosts)}"
        )
        return ApiError(403, message, code="host_not_allowed")


def is_own(host: str | None, names: Collection[str]) -> bool:
    """Return whether a host is localhost, below it, an IP address, or one of some names, of which `*.name` is many."""
    if host is None:
        return False
    if host == "localhost" or host.endswith(".localhost") or host in names or is_address(host):
        return True
    labels = host.split(".")
    return any(f"*.{'.'.join(labels[start:])}" in names for start in range(1, len(labels)))


def host_of(header: str) -> str | None:
    """Return the name or address in a Host header, None if it is none."""
    match = HOST.fullmatch(header)
    return None if match is None else match[1].lower().removesuffix(".")


def values_of(scope: Scope, header: bytes) -> list[str]:
    return [value.decode("latin-1") for name, value in scope["headers"] if name == header]


def shown(values: Collection[str]) -> str:
    """Return the values of a header for a message."""
    return ", ".join(map(ascii, values)) or "none"


def is_address(host: str) -> bool:
    """Return whether a host is an IP address, perhaps in brackets."""
    try:
        ip_address(host.removeprefix("[").removesuffix("]"))
    except ValueError:
        return False
    return True

"""Host and Origin headers: a server on the loopback interface answers only to its own names, and to its own pages.

A site whose name resolves to a loopback address (DNS rebinding) lets a browser on this machine call the server as if it
were that site's own. The browser then sends the site's name as Host, so other names than the server's are refused. An
IP address needs no name to be resolved, and `localhost` never resolves to anything else.

A page of another site cannot read answers, but its POST of plain text would be served. Browsers name the page's site as
Origin; other clients send none.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from ipaddress import ip_address

from starlette.types import ASGIApp, Receive, Scope, Send

from sluice.config import ServerConfig
from sluice.http.auth import OPEN_PATHS
from sluice.http.errors import ApiError
from sluice.http.options import ANY_HOST, allowed_hosts

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
    """ASGI middleware that refuses requests for another host's name, and POSTs of another site's pages, with 403.

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
        hosts, origins = _values(scope, b"host"), _values(scope, b"origin")
        if len(hosts) != 1 or not self._accepts(_host(hosts[0])):
            message = (
                "the Host header must be localhost, an IP address or one of the names in --allowed-hosts, which keeps"
                f" sites from taking this server's place (DNS rebinding); got {_shown(hosts)}"
            )
            return ApiError(403, message, code="host_not_allowed")
        if scope["method"] == "POST" and not all(self._accepts_origin(origin, hosts[0]) for origin in origins):
            message = (
                "the Origin header must name localhost, the host of the Host header or one of the names in"
                " --allowed-hosts, which keeps pages of other sites from calling this server through a browser;"
                f" got {_shown(origins)}"
            )
            return ApiError(403, message, code="origin_not_allowed")
        return None

    def _accepts_origin(self, origin: str, own: str) -> bool:
        """Whether a page of an origin may post. A site may be at any address, so only a loopback one is accepted."""
        host = _host(origin.partition("://")[2])
        if host is None or host in self._names or not _is_address(host):
            return self._accepts(host)
        return host == _host(own) or ip_address(host.strip("[]")).is_loopback

    def _accepts(self, host: str | None) -> bool:
        if host is None:
            return False
        if host == "localhost" or host.endswith(".localhost") or host in self._names or _is_address(host):
            return True
        labels = host.split(".")
        return any(f"*.{'.'.join(labels[start:])}" in self._names for start in range(1, len(labels)))


def _host(header: str) -> str | None:
    """Return the name or address in a Host header, None if it is none."""
    match = HOST.fullmatch(header)
    return None if match is None else match[1].lower().removesuffix(".")


def _values(scope: Scope, header: bytes) -> list[str]:
    return [value.decode("latin-1") for name, value in scope["headers"] if name == header]


def _shown(values: Collection[str]) -> str:
    return ", ".join(map(ascii, values)) or "none"


def _is_address(host: str) -> bool:
    try:
        ip_address(host.removeprefix("[").removesuffix("]"))
    except ValueError:
        return False
    return True

"""Pages of other sites: which of them may call the server through a browser, and read its answers (CORS).

A page cannot read the answer of another site that does not allow it, but a browser sends its POST of a form or of plain
text all the same. Browsers name the page's site in such a request, as Origin and Sec-Fetch-Site; other clients send
neither. A POST of JSON from another site is sent only if the server has allowed the site before.
"""

from __future__ import annotations

from collections.abc import Collection
from ipaddress import ip_address

from starlette.middleware.cors import CORSMiddleware
from starlette.types import ASGIApp, Receive, Scope, Send

from sluice.http.base.errors import ApiError
from sluice.http.base.origins import Origins
from sluice.http.edge.hosts import host_of, is_address, is_own, shown, values_of

SAFE_METHODS = frozenset({"GET", "HEAD", "OPTIONS"})
"""Requests that change nothing."""
METHODS = ("DELETE", "GET", "HEAD", "POST")
SHOWN_HEADERS = ("retry-after", "x-request-id", "x-sluice-ignored-fields")
"""Headers of answers that pages may read besides those that they always may."""
PREFLIGHT_SECONDS = 600


def with_cors(app: ASGIApp, origins: Origins) -> CORSMiddleware:
    """Return an application whose answers, and answers to preflights, let pages of some origins read them."""
    return CORSMiddleware(
        app,
        allow_origin_regex=origins.regex,
        allow_methods=METHODS,
        allow_headers=("*",),
        expose_headers=SHOWN_HEADERS,
        allow_private_network=True,
        max_age=PREFLIGHT_SECONDS,
    )


class CrossSiteChecked:
    """ASGI middleware that refuses what pages of other sites send, unless they are allowed and send JSON.

    The server's own pages are those whose host is that of the Host header, localhost or a loopback address.

    Args:
        names: of hosts whose pages are own ones, too.
        origins: of other pages that are allowed.
    """

    def __init__(self, app: ASGIApp, names: Collection[str], origins: Origins) -> None:
        self._app = app
        self._names = frozenset(names)
        self._origins = origins

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        refusal = None if scope["type"] != "http" or scope["method"] in SAFE_METHODS else self._refusal(scope)
        await (self._app if refusal is None else refusal.response(scope["path"]))(scope, receive, send)

    def _refusal(self, scope: Scope) -> ApiError | None:
        origins, sites = values_of(scope, b"origin"), values_of(scope, b"sec-fetch-site")
        if sites == ["same-origin"] or not (origins or sites):
            return None
        hosts = values_of(scope, b"host")
        if origins and all(self._is_own(origin, hosts) for origin in origins):
            return None
        if not origins and not {"cross-site", "same-site"}.intersection(sites):
            return None
        if len(origins) != 1 or not self._origins.allow(origins[0]):
            message = (
                "the request comes from a page of another site: its Origin header must name localhost, the host of the"
                " Host header or one of the names in --allowed-hosts, or be one of --allowed-origins; got"
                f" {shown(origins)}"
            )
            return ApiError(403, message, code="origin_not_allowed")
        kinds = [value.partition(";")[0].strip().lower() for value in values_of(scope, b"content-type")]
        # A browser asks before it sends a DELETE, which has no body.
        if kinds == ["application/json"] or (scope["method"] == "DELETE" and not kinds):
            return None
        message = f"a page of another site must send Content-Type: application/json, got {shown(kinds)}"
        return ApiError(415, message, code="content_type_not_allowed")

    def _is_own(self, origin: str, hosts: Collection[str]) -> bool:
        """Return whether an origin is the server's own. A site may be at any address, so only a loopback one is."""
        host = host_of(origin.partition("://")[2])
        if host is None:
            return False
        if host in self._names or [host] == [host_of(each) for each in hosts]:
            return True
        return ip_address(host.strip("[]")).is_loopback if is_address(host) else is_own(host, self._names)

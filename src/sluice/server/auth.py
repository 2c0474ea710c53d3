"""The API key: whoever has none gets no further than the questions whether the server is well."""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Collection

from starlette.types import ASGIApp, Receive, Scope, Send

from sluice.server.errors import ApiError

OPEN_PATHS = frozenset({"/health", "/live", "/ready"})
"""A load balancer has no key."""


class KeyRequired:
    """Lets requests through that carry one of the keys, as `Authorization: Bearer KEY`.

    Keys are compared by their hashes, in a time that depends on neither the keys nor what was sent.
    """

    def __init__(self, app: ASGIApp, keys: Collection[str]) -> None:
        self._app = app
        self._hashes = [_hash(key.encode()) for key in keys]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["path"] in OPEN_PATHS or self._knows(scope):
            await self._app(scope, receive, send)
            return
        response = ApiError(
            401, "this server needs an API key, sent as Authorization: Bearer KEY", code="invalid_api_key"
        ).response()
        response.headers["WWW-Authenticate"] = "Bearer"
        await response(scope, receive, send)

    def _knows(self, scope: Scope) -> bool:
        given = [value for name, value in scope["headers"] if name == b"authorization"]
        scheme, _, key = (given[0] if len(given) == 1 else b"").partition(b" ")
        sent = _hash(key.strip())
        known = [hmac.compare_digest(sent, own) for own in self._hashes]
        return any(known) and scheme.lower() == b"bearer"


def _hash(key: bytes) -> bytes:
    return hashlib.sha256(key).digest()

"""API keys: a request without one is answered with 401, but for health checks and the description of the API."""

from __future__ import annotations

import hashlib
import hmac
import re
from collections.abc import Collection
from pathlib import Path

from starlette.types import ASGIApp, Receive, Scope, Send

from sluice.config import ConfigError, ServerConfig
from sluice.http.errors import ApiError

SENT_KEY = "sluice.api_key"
"""Where the scope of a request has the bytes of its key."""
GOOD_KEY = re.compile(r"[\x21-\x7e]+")
OPEN_PATHS = frozenset({"/health", "/live", "/ping", "/ready"})
"""A load balancer has no key, and no name of ours."""
DESCRIPTION = re.compile(r"/openapi\.json|/docs(/.*)?")
"""Paths that need no key: they describe every server alike, and a browser opens the page without one."""


def read_keys(server: ServerConfig) -> frozenset[str]:
    """Return the keys that the options name; without any, requests need none.

    Raises:
        ConfigError: a file that cannot be read or holds no key, or a key that no header could carry. No key is shown.
    """
    keys = set() if server.api_key is None else {_checked("--api-key", server.api_key)}
    if server.api_key_file is not None:
        where = f"--api-key-file {server.api_key_file}"
        try:
            lines = Path(server.api_key_file).read_text(encoding="utf-8").splitlines()
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigError(f"{where} cannot be read: {error}") from error
        found = {_checked(where, line.strip()) for line in lines if line.strip()}
        if not found:
            raise ConfigError(f"{where} holds no key; write one key on each line")
        keys |= found
    return frozenset(keys)


def _checked(where: str, key: str) -> str:
    if GOOD_KEY.fullmatch(key) is None:
        raise ConfigError(f"{where}: a key must be printable ASCII characters without spaces, at least one")
    return key


class KeyRequired:
    """ASGI middleware that lets requests through which carry one of the keys, as `Authorization: Bearer KEY`.

    Keys are compared by their hashes, in a time that depends on neither the keys nor what was sent. The key is left in
    the scope, under `SENT_KEY`.
    """

    def __init__(self, app: ASGIApp, keys: Collection[str]) -> None:
        self._app = app
        self._hashes = [_hash(key.encode()) for key in keys]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or _is_open(scope["path"]) or self._has_key(scope):
            await self._app(scope, receive, send)
            return
        response = ApiError(
            401, "this server needs an API key, sent as Authorization: Bearer KEY", code="invalid_api_key"
        ).response(scope["path"])
        response.headers["WWW-Authenticate"] = "Bearer"
        await response(scope, receive, send)

    def _has_key(self, scope: Scope) -> bool:
        headers = [value for name, value in scope["headers"] if name == b"authorization"]
        scheme, _, key = (headers[0] if len(headers) == 1 else b"").partition(b" ")
        scope[SENT_KEY] = key.strip()
        sent = _hash(scope[SENT_KEY])
        matches = [hmac.compare_digest(sent, own) for own in self._hashes]
        return any(matches) and scheme.lower() == b"bearer"


def _is_open(path: str) -> bool:
    return path in OPEN_PATHS or DESCRIPTION.fullmatch(path) is not None


def _hash(key: bytes) -> bytes:
    return hashlib.sha256(key).digest()

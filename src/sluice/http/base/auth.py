"""API keys: a request without one is answered with 401, but for health checks and the description of the API."""

from __future__ import annotations

import hashlib
import hmac
import re
from collections.abc import Collection
from pathlib import Path

from starlette.types import ASGIApp, Receive, Scope, Send

from sluice.config import ConfigError, ServerConfig
from sluice.http.base.errors import ApiError

SENT_KEY = "sluice.api_key"
"""Where the scope of a request has the bytes of its key."""
KEY_HEADER = b"x-api-key"
"""The header of Anthropic's API."""
GOOD_KEY = re.compile(r"[\x21-\x7e]+")
OPEN_PATHS = frozenset({"/health", "/live", "/ping", "/ready"})
"""A load balancer has no key, and no name of ours."""
ADMIN_PATHS = frozenset(
    {"/is_sleeping", "/sleep", "/wake_up"}
    | {f"{prefix}/{verb}_lora_adapter" for prefix in ("", "/v1") for verb in ("load", "unload")}
)
"""Paths that need a key of the administrator's, and no other."""
DESCRIPTION = re.compile(r"/openapi\.json|/docs(/.*)?")
"""Paths that need no key: they describe every server alike, and a browser opens the page without one."""
PAGE = re.compile(r"/|/page/.*")
"""Paths of the page at `/` and its files, which are those of every server: they need no key if there is a page."""


def read_keys(server: ServerConfig) -> frozenset[str]:
    """Return the keys that the options name; without any, requests need none.

    Raises:
        ConfigError: a file that cannot be read or holds no key, or a key that no header could carry. No key is shown.
    """
    return _keys("--api-key", server.api_key, server.api_key_file)


def read_admin_keys(server: ServerConfig, api_keys: Collection[str]) -> frozenset[str]:
    """Return the keys of the administrator.

    Raises:
        ConfigError: as `read_keys`, or one of them is an API key.
    """
    keys = _keys("--admin-key", server.admin_key, server.admin_key_file)
    if not keys.isdisjoint(api_keys):
        raise ConfigError("an admin key (--admin-key, --admin-key-file) must not be an API key, too")
    return keys


def _keys(option: str, key: str | None, file: str | None) -> frozenset[str]:
    """Return the key of an option, and those of the option for a file."""
    keys = set() if key is None else {_checked(option, key)}
    if file is not None:
        where = f"{option}-file {file}"
        try:
            lines = Path(file).read_text(encoding="utf-8").splitlines()
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


def client_of(scope: Scope) -> str:
    """Return who sent a request: a checked key, by its hash; else the address that it came from; "" if unknown."""
    key: bytes = scope.get(SENT_KEY, b"")
    if key:
        return _hash(key).hex()
    peer = scope.get("client")
    return str(peer[0]) if peer else ""


class KeyRequired:
    """ASGI middleware that lets requests through which carry one of the keys.

    It stands in `Authorization: Bearer KEY`, or, as Anthropic's clients send it, in `x-api-key`. Several headers must
    agree.

    Without API keys, all paths but the administrator's are open; without keys of the administrator's, these are closed.

    Keys are compared by their hashes, in a time that depends on neither the keys nor what was sent. The key is left in
    the scope, under `SENT_KEY`.

    Args:
        has_page: the page at `/` is open.
    """

    def __init__(
        self, app: ASGIApp, keys: Collection[str], admin_keys: Collection[str], *, has_page: bool = False
    ) -> None:
        self._app = app
        self._has_page = has_page
        self._hashes = [_hash(key.encode()) for key in keys]
        self._admin_hashes = [_hash(key.encode()) for key in admin_keys]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or self._is_open(scope["path"]) or self._has_key(scope):
            await self._app(scope, receive, send)
            return
        of_admin = " of its administrator" if scope["path"] in ADMIN_PATHS else ""
        how = "sent as Authorization: Bearer KEY or as x-api-key: KEY"
        error = ApiError(401, f"this server needs an API key{of_admin}, {how}", code="invalid_api_key")
        response = error.response(scope["path"])
        response.headers["WWW-Authenticate"] = "Bearer"
        await response(scope, receive, send)

    def _is_open(self, path: str) -> bool:
        if path in ADMIN_PATHS:
            return False
        if not self._hashes or path in OPEN_PATHS or DESCRIPTION.fullmatch(path) is not None:
            return True
        return self._has_page and PAGE.fullmatch(path) is not None

    def _has_key(self, scope: Scope) -> bool:
        sent_keys = {key for name, value in scope["headers"] if (key := _sent_key(name, value)) is not None}
        scope[SENT_KEY] = sent_keys.pop() if len(sent_keys) == 1 else b""
        sent = _hash(scope[SENT_KEY])
        hashes = self._admin_hashes if scope["path"] in ADMIN_PATHS else self._hashes
        matches = [hmac.compare_digest(sent, own) for own in hashes]
        return any(matches)


def _sent_key(name: bytes, value: bytes) -> bytes | None:
    """Return the key that a header holds: an empty one if it should hold one and does not; None if it holds none."""
    if name == KEY_HEADER:
        return value.strip()
    if name != b"authorization":
        return None
    scheme, _, key = value.partition(b" ")
    return key.strip() if scheme.lower() == b"bearer" else b""


def _hash(key: bytes) -> bytes:
    return hashlib.sha256(key).digest()

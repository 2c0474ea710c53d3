"""Cache isolation: which requests may find each other's cached prefixes.

How fast a prompt is answered, and `usage.cached_tokens`, tell whether its beginning was sent before. Requests share
cached prefixes only if their salts are equal (`Submit.extra_key`), so isolation is a choice of salts.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
from dataclasses import dataclass
from pathlib import Path

from sluice.config import ConfigError, EngineConfig, ServerConfig
from sluice.http.base.errors import bad_request
from sluice.process.secret_file import SIZE, read_or_make_secret

SECRET = "the secret of --cache-isolation"


@dataclass(frozen=True, slots=True)
class CacheIsolation:
    """How `--cache-isolation` makes the salt of a request.

    With "key" it is HMAC-SHA256(HMAC-SHA256(secret, API key), the client's salt). A client that sends another client's
    salt, or what a page file shows of it, gets a different one. A salt does not reveal its key without the secret.
    """

    mode: str = "none"
    secret: bytes = b""

    def salt(self, given: str, api_key: bytes, *, param: str) -> str:
        """Return the salt of a request.

        Args:
            given: the client's salt; empty if it sent none.
            api_key: that the client sent; used with "key".
            param: the field of the client's salt.

        Raises:
            ApiError: 400, a salt is required and there is none.
        """
        match self.mode:
            case "key":
                return _hmac(_hmac(self.secret, api_key), given.encode()).hex()
            case "salt-required" if not given:
                message = f"{param} is required: this server shares no cached prefixes without one (--cache-isolation)"
                raise bad_request(message, param=param)
        return given


def read_isolation(server: ServerConfig, engine: EngineConfig) -> CacheIsolation:
    """Return what the options ask for. The secret lasts as long as what is cached under its salts.

    Raises:
        ConfigError: the file of the secret is refused, or there is neither a cache nor answers to guess from.
    """
    if server.cache_isolation != "key":
        return CacheIsolation(server.cache_isolation)
    if not engine.cache.enable_prefix_caching and not engine.speculative.keeps_answers:
        raise ConfigError("--cache-isolation key has no effect without prefix caching; leave one of the two flags out")
    file = engine.cache.kv_disk
    secret = secrets.token_bytes(SIZE) if file is None else read_or_make_secret(secret_path(Path(file)), SECRET)
    return CacheIsolation(server.cache_isolation, secret)


def secret_path(page_file: Path) -> Path:
    """Return where the secret for a page file is kept, so that a restart finds the same prefixes."""
    return Path(f"{page_file}.secret")


def _hmac(key: bytes, message: bytes) -> bytes:
    return hmac.digest(key, message, hashlib.sha256)

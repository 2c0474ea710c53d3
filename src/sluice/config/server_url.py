"""The URL of a server with OpenAI's API, as `--url` takes it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self
from urllib.parse import urlsplit

from sluice.config.base import ConfigError


@dataclass(frozen=True, slots=True)
class ServerURL:
    """Where a server listens."""

    url: str
    """URL without "/v1" and without a slash at the end."""
    host: str
    port: int
    path: str
    """What comes before "/v1" in every path."""
    is_tls: bool

    @classmethod
    def parse(cls, url: str) -> Self:
        """Read http://host:port, with or without a path and "/v1".

        Raises:
            ConfigError: this is no such URL.
        """
        shown = f"--url must be like http://localhost:8000, got {url!r}"
        try:
            parts = urlsplit(url)
            port = parts.port
        except ValueError as error:
            raise ConfigError(f"{shown}: {error}") from error
        if (
            parts.scheme not in ("http", "https")
            or not parts.hostname
            or parts.query
            or not url.isascii()
            or " " in url
        ):
            raise ConfigError(shown)
        if parts.username is not None:
            raise ConfigError("--url must not hold a user or a password; give the server's key by --api-key")
        is_tls = parts.scheme == "https"
        return cls(
            url=url.rstrip("/").removesuffix("/v1"),
            host=parts.hostname,
            port=port or (443 if is_tls else 80),
            path=parts.path.rstrip("/").removesuffix("/v1"),
            is_tls=is_tls,
        )

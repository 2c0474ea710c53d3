"""Which API key is sent to a server.

A key that was given for this server, by `--api-key` or SLUICE_API_KEY, is sent wherever `--url` points; over plain HTTP
to another machine with a warning, as everyone on the way can read it. OPENAI_API_KEY is there for other programs, and
mostly a key of OpenAI: it is sent to this machine and over TLS, as OpenAI's own clients do with any address, and never
over plain HTTP to another machine.
"""

from __future__ import annotations

from ipaddress import ip_address
from typing import NamedTuple

from sluice.config import ConfigError


class Keys(NamedTuple):
    """The keys that there are, None where there is none."""

    given: str | None
    """Key given by --api-key."""
    sluice: str | None
    """SLUICE_API_KEY of the environment."""
    openai: str | None
    """OPENAI_API_KEY of the environment."""


class ChosenKey(NamedTuple):
    """What is sent to a server."""

    key: str | None
    warning: str | None
    """What the user should know of it, in one line."""


def key_for(host: str, keys: Keys, *, is_tls: bool) -> ChosenKey:
    """Choose the key for a server.

    Args:
        host: its name or IP address.

    Raises:
        ConfigError: the key cannot be sent in a header.
    """
    is_private = is_tls or is_loopback(host)
    own = keys.sluice if keys.given is None else keys.given
    if own is not None:
        return ChosenKey(
            _checked(own), None if is_private else f"the API key goes to {host} over plain HTTP: others may read it"
        )
    if keys.openai is None:
        return ChosenKey(None, None)
    if is_private:
        return ChosenKey(_checked(keys.openai), None)
    return ChosenKey(
        None,
        f"OPENAI_API_KEY is not sent to {host} over plain HTTP; if it is that server's key, set SLUICE_API_KEY to it",
    )


def is_loopback(host: str) -> bool:
    """Tell whether what is sent to a host stays on this machine."""
    name = host.rstrip(".").lower()
    if name == "localhost" or name.endswith(".localhost"):
        return True
    try:
        return ip_address(name.partition("%")[0]).is_loopback
    except ValueError:
        return False


def _checked(key: str) -> str:
    if not (key.isascii() and key.isprintable()):
        raise ConfigError("the API key must be printable ASCII")
    return key

"""Whoever can reach the server can use it: said at the start, if that is more than this machine."""

from __future__ import annotations

from ipaddress import ip_address


def exposure_warning(address: str, *, has_key: bool) -> str | None:
    """What a person who starts a server should know of where it listens.

    Args:
        address: IP address that is listened on.
        has_key: callers need an API key.
    """
    if has_key or ip_address(address.partition("%")[0]).is_loopback:
        return None
    return (
        f"listening on {address} without an API key: everybody who can reach it can use it and read its metrics;"
        " see docs/security.md"
    )

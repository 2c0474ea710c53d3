"""The context that requests may have."""

from __future__ import annotations

from sluice.config import ConfigError


def check_context(length: int | None, own: int) -> None:
    """Check `--context-length`.

    Args:
        length: its value, in tokens.
        own: the context of the model, in tokens.

    Raises:
        ConfigError: the model's context is shorter.
    """
    if length is not None and not 2 <= length <= own:
        raise ConfigError(f"--context-length must be from 2 to the model's context of {own} tokens, got {length}")

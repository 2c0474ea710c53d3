"""The option `--allowed-origins`: the other sites whose pages may call the server."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass

from sluice.config import ConfigError, ServerConfig

ANY = "*"
ORIGIN = re.compile(r"[a-z][a-z0-9+.-]*://[a-z0-9*._~\[\]-]+(:([0-9]+|\*))?", re.IGNORECASE)
"""A scheme, a name or an address in which `*` stands for any text, and perhaps a port."""


@dataclass(frozen=True)
class Origins:
    """The other sites whose pages may call the server."""

    patterns: tuple[str, ...] = ()
    """Each `scheme://host:port`, with `*` for any text, or `ANY`."""

    @property
    def regex(self) -> str:
        """A regular expression that all of an allowed origin matches."""
        parts = (".*" if each == ANY else re.escape(each).replace(r"\*", "[^/]*") for each in self.patterns)
        return f"(?i:{'|'.join(parts)})"

    def allow(self, origin: str) -> bool:
        """Return whether a page of an origin may call the server."""
        return bool(self.patterns) and re.fullmatch(self.regex, origin) is not None


def allowed_origins(config: ServerConfig) -> Origins:
    """Return the origins of `--allowed-origins`: separated by commas, or a list in JSON.

    Raises:
        ConfigError: an entry that is no origin.
    """
    given = config.allowed_origins
    if given is None:
        return Origins()
    names = _json_list(given) if given.lstrip().startswith("[") else [name.strip() for name in given.split(",")]
    for name in names:
        if name != ANY and ORIGIN.fullmatch(name) is None:
            raise ConfigError(
                "--allowed-origins must be origins separated by commas, as https://chat.example,http://localhost:*;"
                f" got {name!r}"
            )
    return Origins(tuple(names))


def _json_list(text: str) -> list[str]:
    try:
        names = json.loads(text)
    except json.JSONDecodeError as error:
        raise ConfigError(f"--allowed-origins is no list in JSON: {error}; got {text!r}") from error
    if not all(isinstance(name, str) for name in names):
        raise ConfigError(f"--allowed-origins must be a list of texts, got {text!r}")
    return [*names]

"""What an option is: its default, its help, its names and the check of its value."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields
from types import MappingProxyType
from typing import Any


class ConfigError(ValueError):
    """An option, or a combination of options, that cannot be honoured."""


class MemoryShortage(ConfigError):
    """The memory that is free at the moment does not hold what the options ask for; it may be enough later."""


@dataclass(frozen=True, slots=True)
class Option:
    """How users see one field of a group."""

    help: str
    """One line, for `--help`."""
    more: str = ""
    """The rest of the description, for the documentation."""
    unset: str = ""
    """The value of an option that is left open, in words; needed where the default is None."""
    choices: tuple[str, ...] = ()
    aliases: tuple[str, ...] = ()
    """Other accepted names: of other engines where they mean the same, and former names."""
    sglang: str = ""
    """SGLang's flag for the same thing, if any."""
    vllm: str = ""
    """vLLM's flag for the same thing, if any."""
    metavar: str = "N"
    positive: bool = False
    """Set values must be integers of at least 1."""
    short: str = ""
    """Another engine's short form of the flag."""
    secret: bool = False
    """The value is never shown."""
    spellings: Mapping[str, str] = field(default_factory=dict)
    """Other engines' names of values -> ours."""

    nearest: Mapping[str, str] = field(default_factory=dict)
    """Other engines' values that are not supported -> the nearest of ours."""

    def spelled(self, value: Any) -> Any:
        """Return a value under our own name for it."""
        return self.spellings.get(value, value) if isinstance(value, str) else value


def option(default: Any, help: str, **rest: Any) -> Any:
    """Return a dataclass field with an `Option`, whose further fields are `rest`."""
    return field(default=default, metadata={"option": Option(help, **rest)})


UNITS: Mapping[str, int] = MappingProxyType({"us": 1, "ms": 1000, "s": 1_000_000, "m": 60_000_000, "h": 3_600_000_000})
LONGEST_MICROS = 10**13
DURATION = re.compile(r"(\d{1,12}(?:\.\d{1,12})?)(us|ms|s|m|h)")


def micros_of(text: str) -> int | None:
    """Return the microseconds of a duration such as `200ms`, `1.5s` or `10m`; None if it is none, below 1 or above
    `LONGEST_MICROS`, 115 days."""
    found = DURATION.fullmatch(text)
    if found is None:
        return None
    micros = round(float(found[1]) * UNITS[found[2]])
    return micros if 1 <= micros <= LONGEST_MICROS else None


def flag(name: str) -> str:
    """Return an option's flag on the command line."""
    return "--" + name.replace("_", "-")


def options_of(group: type) -> Iterator[tuple[str, Option]]:
    """Yield the (field name, Option) pairs of one group, in order."""
    for item in fields(group):
        yield item.name, item.metadata["option"]


def check_values(group: Any) -> None:
    """Check each value by itself: choices, types, signs.

    Raises:
        ConfigError: naming the option, its value and what would be accepted.
    """
    for item in fields(group):
        meta: Option = item.metadata["option"]
        value = getattr(group, item.name)
        shown = flag(item.name)
        if value is None and item.default is None:
            continue
        if meta.choices and value not in meta.choices:
            nearest = f"; the nearest is {meta.nearest[value]}" if value in meta.nearest else ""
            raise ConfigError(f"{shown} must be one of {', '.join(meta.choices)}, got {value!r}{nearest}")
        if "bool" in item.type:
            if not isinstance(value, bool):
                raise ConfigError(f"{shown} must be true or false, got {value!r}")
        elif "float" in item.type:
            if not isinstance(value, int | float) or isinstance(value, bool) or not 0 <= value < math.inf:
                raise ConfigError(f"{shown} must be a number of at least 0, got {value!r}")
        elif "int" in item.type:
            if not isinstance(value, int) or isinstance(value, bool):
                raise ConfigError(f"{shown} must be an integer, got {value!r}")
            if meta.positive and value < 1:
                raise ConfigError(f"{shown} must be at least 1, got {value}")
        elif "tuple" in item.type:
            if not isinstance(value, tuple) or not all(isinstance(each, str) for each in value):
                raise ConfigError(f"{shown} must be a list of texts, got {value!r}")
        elif not isinstance(value, str):
            raise ConfigError(f"{shown} must be a text, got {value!r}")

"""A flag of another engine whose value is a JSON object."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

from sluice.config.base import ConfigError, flag, options_of


@dataclass(frozen=True, slots=True)
class JsonFlag:
    """A flag for an object whose fields are options of ours."""

    options: Mapping[str, str]
    """Fields of the object -> our options."""
    short: str = ""
    """The flag's short form."""
    accepted: Mapping[str, tuple[Any, ...]] = field(default_factory=dict)
    """Further fields -> the values that ask for what Sluice does anyway."""

    def translated(self, name: str, value: Any) -> Iterator[tuple[str, Any]]:
        """Yield the options that an object sets, and their values.

        Args:
            value: the object, or its JSON; None sets nothing.

        Raises:
            ConfigError: it is no object, or has a field that is no option of ours, or a value that is not supported.
        """
        fields = _parsed(name, value) if isinstance(value, str) else {} if value is None else value
        if not isinstance(fields, Mapping):
            raise ConfigError(f"{flag(name)} must be a JSON object, got {value!r}")
        for key, given in fields.items():
            if key in self.accepted:
                if given not in self.accepted[key]:
                    only = " or ".join(repr(value) for value in self.accepted[key])
                    raise ConfigError(f"{flag(name)}: {key} must be {only}, got {given!r}")
                continue
            if key not in self.options:
                known = ", ".join((*self.options, *self.accepted))
                raise ConfigError(f"{flag(name)}: {key!r} is not supported; the fields that are: {known}")
            yield self.options[key], given


def fields_of_flag(of_vllm: str, group: type) -> Mapping[str, str]:
    """Return the fields of an object of vLLM's that options of a group name (`Option.vllm`) -> these options."""
    named = ((meta.vllm.partition("."), name) for name, meta in options_of(group))
    return MappingProxyType({field: name for (own, _, field), name in named if own == of_vllm})


def _parsed(name: str, text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError as error:
        raise ConfigError(f"{flag(name)} must be a JSON object, got {text!r}: {error}") from None

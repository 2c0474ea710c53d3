"""All options of an engine, and its construction from names and values."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any

from sluice.config.base import ConfigError, check_values, flag, options_of
from sluice.config.model import CacheConfig, ModelConfig, OffloadConfig, TraceConfig
from sluice.config.scheduler import SchedulerConfig
from sluice.config.server import ServerConfig


def threads_from_environment() -> int | None:
    """Return the number of threads that OMP_NUM_THREADS sets for computing libraries; None if it sets none."""
    first = os.environ.get("OMP_NUM_THREADS", "").partition(",")[0].strip()
    return int(first) if first.isascii() and first.isdecimal() and int(first) > 0 else None


GROUPS: Mapping[str, type] = {
    "model": ModelConfig,
    "cache": CacheConfig,
    "scheduler": SchedulerConfig,
    "offload": OffloadConfig,
    "trace": TraceConfig,
    "server": ServerConfig,
}
ENGINE_GROUPS = ("model", "cache", "scheduler", "offload", "trace")


@dataclass(frozen=True)
class EngineConfig:
    """All options of an engine. Those that are None are open until resolved."""

    model: ModelConfig = field(default_factory=ModelConfig)
    cache: CacheConfig = field(default_factory=CacheConfig)
    scheduler: SchedulerConfig = field(default_factory=SchedulerConfig)
    offload: OffloadConfig = field(default_factory=OffloadConfig)
    trace: TraceConfig = field(default_factory=TraceConfig)

    @classmethod
    def from_options(cls, options: Mapping[str, Any]) -> EngineConfig:
        """Build from flat option names, with dashes or underscores; aliases are accepted.

        Raises:
            ConfigError: a name that is no engine option (named, with the known ones), or a bad value.
        """
        values: dict[str, dict[str, Any]] = {group: {} for group in ENGINE_GROUPS}
        for name, value in canonical(options).items():
            values[_group_of(name)][name] = value
        config = cls(**{group: GROUPS[group](**values[group]) for group in ENGINE_GROUPS})
        for group in ENGINE_GROUPS:
            check_values(getattr(config, group))
        return config


@dataclass(frozen=True, slots=True)
class Switch:
    """Another engine's flag that sets one of our options to a value."""

    option: str
    on: str | bool
    off: str | bool


SWITCHES: Mapping[str, Switch] = {
    "enable_mixed_chunk": Switch("schedule", "mixed", "prefill-first"),
    "disable_radix_cache": Switch("enable_prefix_caching", False, True),
}


def canonical(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return engine options under our own names, with dashes, aliases and switches resolved.

    Raises:
        ConfigError: a name that is no engine option, an option given twice, or a switch that is not true or false.
    """
    groups = [GROUPS[group] for group in ENGINE_GROUPS]
    known = {name for group in groups for name, _ in options_of(group)}
    aliases = {alias: name for group in groups for name, meta in options_of(group) for alias in meta.aliases}
    found: dict[str, Any] = {}
    for given, value in options.items():
        name = given.replace("-", "_")
        if (switch := SWITCHES.get(name)) is not None:
            if not isinstance(value, bool):
                raise ConfigError(f"{flag(name)} must be true or false, got {value!r}")
            name, value = switch.option, switch.on if value else switch.off
        name = aliases.get(name, name)
        if name not in known:
            raise ConfigError(f"unknown option {given!r}; known: {', '.join(sorted(known))}")
        if name in found:
            raise ConfigError(f"option {name!r} is given twice")
        found[name] = value
    return found


def _group_of(name: str) -> str:
    return next(group for group in ENGINE_GROUPS if any(name == item.name for item in fields(GROUPS[group])))

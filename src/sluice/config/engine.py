"""All options of an engine, and its construction from names and values."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from difflib import get_close_matches
from typing import Any, get_type_hints

from sluice.config.base import ConfigError, check_values, flag, options_of
from sluice.config.compat import FOREIGN, Switch
from sluice.config.diffusion import DiffusionConfig
from sluice.config.json_flag import JsonFlag
from sluice.config.kv_events import KvEventsConfig
from sluice.config.lora import LoraConfig, listed
from sluice.config.model import CacheConfig, ModelConfig, OffloadConfig, TraceConfig
from sluice.config.parallel import ParallelConfig
from sluice.config.scheduler import SchedulerConfig
from sluice.config.server import ServerConfig
from sluice.config.speculative import SpeculativeConfig


def names_ray_cluster() -> bool:
    """Return whether RAY_ADDRESS says which Ray cluster to take."""
    return bool(os.environ.get("RAY_ADDRESS"))


def names_ray_auth_mode() -> bool:
    """Return whether RAY_AUTH_MODE says if Ray sends tokens."""
    return bool(os.environ.get("RAY_AUTH_MODE"))


def let_threads_sleep() -> None:
    """Let torch's threads sleep while they wait for one another, unless the environment says how they wait.

    They compute for as long as they are given a core each. Where other programs take a core, one that waits computes
    for nothing while the one that it waits for does not run: a token takes ten times as long. To be called before
    torch is imported.
    """
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")


def threads_from_environment() -> int | None:
    """Return the number of threads that OMP_NUM_THREADS sets for computing libraries; None if it sets none."""
    first = os.environ.get("OMP_NUM_THREADS", "").partition(",")[0].strip()
    return int(first) if first.isascii() and first.isdecimal() and int(first) > 0 else None


def _types(group: type) -> Iterable[tuple[str, str]]:
    """Yield the fields of a group of options, and their types."""
    return ((item.name, str(item.type)) for item in fields(group))


@dataclass(frozen=True)
class EngineConfig:
    """All options of an engine. Those that are None are open until resolved."""

    model: ModelConfig = field(default_factory=ModelConfig)
    cache: CacheConfig = field(default_factory=CacheConfig)
    scheduler: SchedulerConfig = field(default_factory=SchedulerConfig)
    speculative: SpeculativeConfig = field(default_factory=SpeculativeConfig)
    offload: OffloadConfig = field(default_factory=OffloadConfig)
    diffusion: DiffusionConfig = field(default_factory=DiffusionConfig)
    parallel: ParallelConfig = field(default_factory=ParallelConfig)
    kv_events: KvEventsConfig = field(default_factory=KvEventsConfig)
    lora: LoraConfig = field(default_factory=LoraConfig)
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


GROUPS: Mapping[str, type] = {**get_type_hints(EngineConfig), "server": ServerConfig}
"""The groups of options by name."""
ENGINE_GROUPS = tuple(name for name in GROUPS if name != "server")
LISTS = frozenset(name for group in ENGINE_GROUPS for name, type_ in _types(GROUPS[group]) if "tuple" in type_)
"""Options that are given several times."""


def canonical(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return engine options under our own names, with dashes, aliases and flags of other engines resolved.

    Raises:
        ConfigError: a name that is no engine option, two values of one option, or a flag of another engine with a
            value that asks for what Sluice does not do.
    """
    known = {name: meta for group in ENGINE_GROUPS for name, meta in options_of(GROUPS[group])}
    aliases = {alias: name for name, meta in known.items() for alias in meta.aliases}
    included = {
        item.option: item.includes for name, item in FOREIGN.items() if isinstance(item, Switch) and options.get(name)
    }
    found: dict[str, Any] = {}
    sources: dict[str, str] = {}
    for given, of_option in options.items():
        foreign = FOREIGN.get(given.replace("-", "_"))
        for original, value in _translated(given.replace("-", "_"), of_option):
            name = aliases.get(original, original)
            if foreign is None and value is not None and included.get(name) == value:
                continue
            if name not in known:
                raise ConfigError(_unknown(given, [*known, *aliases, *FOREIGN]))
            value = listed(value) if name in LISTS and value is not None else known[name].spelled(value)
            source = f"{flag(given)} {of_option}"
            if found.setdefault(name, value) != value:
                raise ConfigError(f"{sources[name]} and {source} contradict each other; give one of them")
            sources[name] = source
    return found


def _translated(name: str, value: Any) -> Iterable[tuple[str, Any]]:
    """Return the options that an option or a flag of another engine sets, and their values."""
    foreign = FOREIGN.get(name)
    if foreign is None:
        return [(name, value)]
    if isinstance(foreign, JsonFlag):
        return foreign.translated(name, value)
    translated = foreign.translated(name, value)
    return [] if translated is None else [translated]


def _unknown(given: str, names: Sequence[str]) -> str:
    close = get_close_matches(given.replace("-", "_"), names, n=1)
    return f"unknown option {given!r}; " + (f"did you mean {close[0]}?" if close else "docs/flags.md has all")


def _group_of(name: str) -> str:
    return next(group for group in ENGINE_GROUPS if any(name == item.name for item in fields(GROUPS[group])))

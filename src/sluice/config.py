"""Every option, once: its name, default, help and group.

The command line, `LLM(...)` and the documentation are built from these dataclasses. `resolve.resolve` fills what
was left open and refuses what cannot be honoured; nothing downstream guesses a default.
"""

from __future__ import annotations

import dataclasses
import math
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any

from sluice.types import SchedulerLimits

CHUNKING_OFF = (-1, 0)
MAX_PAGE_SIZE = 1024


class ConfigError(ValueError):
    """An option, or a combination of options, that cannot be honoured."""


@dataclass(frozen=True, slots=True)
class Option:
    """How one field shows itself to users."""

    help: str
    choices: tuple[str, ...] = ()
    aliases: tuple[str, ...] = ()
    metavar: str = "N"
    positive: bool = False
    """Set values must be integers of at least 1."""


def option(default: Any, help: str, **rest: Any) -> Any:
    return field(default=default, metadata={"option": Option(help, **rest)})


@dataclass(frozen=True)
class ModelConfig:
    """Which model, and how it is computed."""

    model: str = option(
        "", "folder or hub id of a Hugging Face checkpoint (default: the bundled model)", metavar="MODEL"
    )
    dtype: str = option(
        "auto",
        "type of weights, KV and computation; auto: what the checkpoint says",
        choices=("auto", "float64", "float32", "bfloat16", "float16"),
    )
    device: str = option("auto", "auto, cpu, cuda or cuda:N; auto: cuda if there is one", metavar="DEVICE")


@dataclass(frozen=True)
class CacheConfig:
    """The KV pool."""

    page_size: int | None = option(None, "tokens per KV page (default: 32 on cpu, 64 on cuda)", positive=True)
    max_total_tokens: int | None = option(
        None, "size of the KV pool in tokens (default: from free memory)", positive=True
    )
    enable_prefix_caching: bool = option(True, "reuse the KV of equal prompt beginnings")


@dataclass(frozen=True)
class SchedulerConfig:
    """What one step may hold."""

    schedule: str = option(
        "mixed",
        "mixed: decodes and prefill chunks share a step, decodes first; prefill-first: prefill goes before decodes",
        choices=("mixed", "prefill-first"),
    )
    chunked_prefill_size: int | None = option(
        None,
        "most prefill tokens of one step; longer prompts are cut; -1 or 0: prompts are never cut"
        " (default: 512 on cpu, 2048 on cuda)",
    )
    max_batch_tokens: int | None = option(
        None,
        "most tokens of one step, decodes included (default: chunked-prefill-size + max-running-requests)",
        aliases=("max_num_batched_tokens",),
        positive=True,
    )
    max_running_requests: int | None = option(
        None,
        "most requests on the device at once (default: 64 on cpu, 256 on cuda)",
        aliases=("max_num_seqs",),
        positive=True,
    )
    max_prefill_tokens: int | None = option(
        None,
        "most tokens of a step that prefills, decodes included; the next prompt in order waits rather than exceed it"
        " (default: no such limit)",
        positive=True,
    )
    long_prefill_token_threshold: int | None = option(
        None, "most prefill tokens of one request in a step (default: no such limit)", positive=True
    )
    max_prefill_requests: int | None = option(
        None, "most requests prefilled in one step (default: no such limit)", positive=True
    )
    max_partial_prefills: int | None = option(
        None,
        "most prompts half computed at once; 1: one after the other; more: short ones overtake, and the oldest has"
        " half of every step (default: 4)",
        positive=True,
    )
    reserve: str = option(
        "ratio",
        "memory counted for the output of running requests; full: all they may make, so nobody is ever retracted;"
        " ratio: a share that sinks while memory lasts",
        choices=("ratio", "full"),
    )
    schedule_conservativeness: float | None = option(
        None, "with --reserve ratio: multiplies the share; 0 counts no output (default: 1)", metavar="X"
    )
    schedule_policy: str = option(
        "fcfs",
        "order of waiting requests; fcfs: arrival, lpm: longest prefix match, priority: by the request's priority",
        choices=("fcfs", "lpm", "priority"),
        aliases=("scheduling_policy",),
    )
    schedule_low_priority_values_first: bool = option(False, "with policy priority: smaller values go first")
    enable_priority_preemption: bool = option(
        False, "with policy priority: running requests of lower priority may make way for waiting ones"
    )
    enable_overlap: bool = option(False, "plan a step while the one before runs: depth 2, lookahead 1")
    depth: int | None = option(
        None, "steps in flight at once; 1: synchronous, 2: overlap (default: 1)", positive=True
    )
    lookahead: int | None = option(
        None,
        "samples of a request that may still be on their way when its next step is planned; at most depth - 1"
        " (default: 0)",
    )

    def limits(self) -> SchedulerLimits:
        """What the scheduler needs of it, once resolved."""
        chunk, batch, running = self.chunked_prefill_size, self.max_batch_tokens, self.max_running_requests
        partial, lookahead = self.max_partial_prefills, self.lookahead
        assert chunk is not None and batch is not None and running is not None, f"not resolved: {self}"
        assert partial is not None and lookahead is not None, f"not resolved: {self}"
        scale = self.schedule_conservativeness
        return SchedulerLimits(
            schedule=self.schedule,
            chunked_prefill_size=chunk,
            max_batch_tokens=batch,
            max_running_requests=running,
            lookahead=lookahead,
            max_prefill_tokens=self.max_prefill_tokens or 0,
            long_prefill_token_threshold=self.long_prefill_token_threshold or 0,
            max_prefill_requests=self.max_prefill_requests or 0,
            max_partial_prefills=partial,
            reserve=self.reserve,
            conservativeness=1.0 if scale is None else scale,
            policy=self.schedule_policy,
            low_priority_values_first=self.schedule_low_priority_values_first,
            priority_preemption=self.enable_priority_preemption,
        )


@dataclass(frozen=True)
class ServerConfig:
    """Where and how HTTP is served."""

    host: str = option("127.0.0.1", "address to listen on", metavar="HOST")
    port: int = option(8000, "port to listen on; 0 picks a free one")
    served_model_name: str | None = option(
        None, "name of the model in the API (default: the model's own name)", metavar="NAME"
    )


GROUPS: Mapping[str, type] = {
    "model": ModelConfig,
    "cache": CacheConfig,
    "scheduler": SchedulerConfig,
    "server": ServerConfig,
}
ENGINE_GROUPS = ("model", "cache", "scheduler")


@dataclass(frozen=True)
class EngineConfig:
    """Everything an engine is told. Options left `None` are open until `resolved`."""

    model: ModelConfig = ModelConfig()
    cache: CacheConfig = CacheConfig()
    scheduler: SchedulerConfig = SchedulerConfig()

    @classmethod
    def from_options(cls, options: Mapping[str, Any]) -> EngineConfig:
        """Build from flat option names (dashes or underscores, aliases allowed).

        Raises:
            ConfigError: a name that is no engine option (named, with the known ones), or a bad value.
        """
        known = {name: group for group in ENGINE_GROUPS for name, _ in options_of(GROUPS[group])}
        aliases = {alias: name for g in ENGINE_GROUPS for name, o in options_of(GROUPS[g]) for alias in o.aliases}
        values: dict[str, dict[str, Any]] = {group: {} for group in ENGINE_GROUPS}
        for given, value in options.items():
            name = given.replace("-", "_")
            if name == "enable_mixed_chunk":
                name, value = "schedule", "mixed" if value else "prefill-first"
            name = aliases.get(name, name)
            if name not in known:
                raise ConfigError(f"unknown option {given!r}; known: {', '.join(sorted(known))}")
            if name in values[known[name]]:
                raise ConfigError(f"option {name!r} is given twice")
            values[known[name]][name] = value
        config = cls(**{group: GROUPS[group](**values[group]) for group in ENGINE_GROUPS})
        for group in ENGINE_GROUPS:
            check_values(getattr(config, group))
        return config


def options_of(group: type) -> Iterator[tuple[str, Option]]:
    """The (field name, Option) pairs of one group, in order."""
    for item in fields(group):
        yield item.name, item.metadata["option"]


def check_values(group: Any) -> None:
    """Each value alone: choices, integers, signs.

    Raises:
        ConfigError: naming the option, its value and what would be accepted.
    """
    for item in dataclasses.fields(group):
        meta: Option = item.metadata["option"]
        value = getattr(group, item.name)
        flag = "--" + item.name.replace("_", "-")
        if value is None and item.default is None:
            continue
        if meta.choices and value not in meta.choices:
            raise ConfigError(f"{flag} must be one of {', '.join(meta.choices)}, got {value!r}")
        if "bool" in item.type:
            if not isinstance(value, bool):
                raise ConfigError(f"{flag} must be true or false, got {value!r}")
        elif "float" in item.type:
            if not isinstance(value, int | float) or isinstance(value, bool) or not 0 <= value < math.inf:
                raise ConfigError(f"{flag} must be a number of at least 0, got {value!r}")
        elif "int" in item.type:
            if not isinstance(value, int) or isinstance(value, bool):
                raise ConfigError(f"{flag} must be an integer, got {value!r}")
            if meta.positive and value < 1:
                raise ConfigError(f"{flag} must be at least 1, got {value}")
        elif not isinstance(value, str):
            raise ConfigError(f"{flag} must be a text, got {value!r}")


def cache_folder() -> Path:
    """Where this user's generated files are kept: `sluice` under XDG_CACHE_HOME, or under ~/.cache."""
    base = os.environ.get("XDG_CACHE_HOME", "")
    # The XDG specification says to ignore a relative path.
    return (Path(base) if os.path.isabs(base) else Path.home() / ".cache") / "sluice"

"""Every option, once: its name, default, help and group.

The command line, `LLM(...)` and the documentation are built from these dataclasses. `EngineConfig.resolved()` fills
what was left open and refuses what cannot be honoured; nothing downstream guesses a default.
"""

from __future__ import annotations

import dataclasses
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
    depth: int = option(1, "steps in flight at once; 1: synchronous, 2: overlap", positive=True)
    lookahead: int = option(
        0,
        "samples of a request that may still be on their way when its next step is planned; at most depth - 1",
    )

    def limits(self) -> SchedulerLimits:
        """What the scheduler needs of it, once resolved."""
        chunk, batch, running = self.chunked_prefill_size, self.max_batch_tokens, self.max_running_requests
        assert chunk is not None and batch is not None and running is not None, f"not resolved: {self}"
        return SchedulerLimits(self.schedule, chunk, batch, running, self.lookahead)


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

    def resolved(self, device_type: str) -> EngineConfig:
        """The same with every open option but the pool size filled (that one needs the loaded model).

        Args:
            device_type: "cpu" or "cuda", what `device` came to.

        Raises:
            ConfigError: contradictory options, by name and value.
        """
        for group in ENGINE_GROUPS:
            check_values(getattr(self, group))
        cache = replace(self.cache, page_size=_page_size(self, device_type))
        scheduler = _resolve_scheduler(self.scheduler, cache, device_type)
        return replace(self, cache=cache, scheduler=scheduler)


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
        elif "int" in item.type:
            if not isinstance(value, int) or isinstance(value, bool):
                raise ConfigError(f"{flag} must be an integer, got {value!r}")
            if meta.positive and value < 1:
                raise ConfigError(f"{flag} must be at least 1, got {value}")
        elif not isinstance(value, str):
            raise ConfigError(f"{flag} must be a text, got {value!r}")


def _page_size(config: EngineConfig, device_type: str) -> int:
    size = config.cache.page_size
    chunk, batch = config.scheduler.chunked_prefill_size, config.scheduler.max_batch_tokens
    pool = config.cache.max_total_tokens
    if size is not None:
        if size > MAX_PAGE_SIZE or size & (size - 1):
            raise ConfigError(f"--page-size must be a power of two of at most {MAX_PAGE_SIZE}, got {size}")
        for name, limit in (("chunked-prefill-size", chunk), ("max-total-tokens", pool)):
            if limit is not None and limit not in CHUNKING_OFF and limit < size:
                raise ConfigError(f"--{name} must be at least one page, got {limit} with --page-size {size}")
        return size
    size = 64 if device_type == "cuda" else 32
    room = batch // 2 if batch is not None else None
    for limit in (chunk, room, pool):
        while limit is not None and limit not in CHUNKING_OFF and size > 1 and limit < size:
            size //= 2
    return size


def _resolve_scheduler(config: SchedulerConfig, cache: CacheConfig, device_type: str) -> SchedulerConfig:
    """Derive what is open so that any one option set alone is valid and has its effect."""
    page_size = cache.page_size
    assert page_size is not None
    if not 0 <= config.lookahead < config.depth:
        raise ConfigError(f"--lookahead must be from 0 to depth - 1 = {config.depth - 1}, got {config.lookahead}")
    chunk, batch, running = (
        config.chunked_prefill_size,
        config.max_batch_tokens,
        config.max_running_requests,
    )
    if chunk is not None and chunk < -1:
        raise ConfigError(f"--chunked-prefill-size must be at least 1, or -1 or 0 for off, got {chunk}")
    if batch is not None and batch <= (running or 1):
        raise ConfigError(
            f"--max-batch-tokens must be larger than --max-running-requests, or running decodes alone could fill"
            f" every step: got {batch} with {running or 1} running"
        )
    if batch is not None and config.max_running_requests is None and batch < page_size + 1:
        raise ConfigError(f"--max-batch-tokens must be at least --page-size + 1 = {page_size + 1}, got {batch}")
    if running is None:
        running = 256 if device_type == "cuda" else 64
        if batch is not None:
            running = max(1, min(running, batch - page_size))
    if chunk is None:
        chunk = max(2048 if device_type == "cuda" else 512, page_size)
        if batch is not None:
            chunk = max(page_size, min(chunk, batch))
    if chunk in CHUNKING_OFF:
        chunk = 0
    if batch is None:
        batch = (chunk or UNCHUNKED_BATCH_TOKENS) + running
    return replace(config, chunked_prefill_size=chunk, max_batch_tokens=batch, max_running_requests=running)


UNCHUNKED_BATCH_TOKENS = 8192
"""Budget of a step when prompts are never cut and no budget is given; a longer prompt goes alone."""


def cache_folder() -> Path:
    """Where this user's generated files are kept: `sluice` under XDG_CACHE_HOME, or under ~/.cache."""
    base = os.environ.get("XDG_CACHE_HOME", "")
    # The XDG specification says to ignore a relative path.
    return (Path(base) if os.path.isabs(base) else Path.home() / ".cache") / "sluice"

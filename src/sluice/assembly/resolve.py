"""The values of options that were left open, and the reasons for them.

Any option set alone is valid and has its effect: open options adapt to it. A set option is never changed; a combination
that cannot be honoured is refused by name. Every derived value has a reason, which `sluice explain` and `/server_info`
show.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Any

from sluice.assembly.ranks import layout_of, refuse_lookahead, refuse_ranks
from sluice.assembly.refusals import refuse_contradictions
from sluice.assembly.sparse import FULL, sparse_sizes
from sluice.assembly.speculation import speculation_sizes
from sluice.config import (
    CHUNKING_OFF,
    ENGINE_GROUPS,
    CacheConfig,
    ConfigError,
    EngineConfig,
    LoraConfig,
    SchedulerConfig,
    check_values,
    flag,
    itl_micros,
)
from sluice.config.lora import check_lora
from sluice.config.priority_classes import classes_of, default_classes
from sluice.types import Tier

UNCHUNKED_BATCH_TOKENS = 8192
"""Budget of a step when prompts are never cut and no budget is given; a longer prompt goes alone."""

PARTIAL_PREFILLS = 4
"""Default number of prompts half computed at once. Measured in `docs/fairness.md`: what matters is to have more than
one; beyond a few, each further one only spreads the same tokens over more prompts."""

TIMED_CHUNKS = 4
"""Times the default chunk that a step with an ITL target may prefill if there is time for it."""

MAX_PAGE_SIZE = 1024

RING_BLOCKS, RING_BLOCK_TOKENS = 8, 1024

DISK_BYTES = 8 << 30
"""Default size of a disk tier. It is no share of the free space, as a file whose size has changed begins empty."""


@dataclass(frozen=True)
class DeviceDefaults:
    """Default sizes for a type of device."""

    page_size: int
    chunk: int
    running: int


DEFAULTS: Mapping[str, DeviceDefaults] = {"cpu": DeviceDefaults(32, 128, 64), "cuda": DeviceDefaults(64, 2048, 256)}
AMX_CHUNK = 256
"""Default chunk on a CPU with AMX, whose tiles want twice the rows. docs/cpu.md has the curves."""


@dataclass(frozen=True)
class Resolution:
    """A config in which only the options that depend on the loaded model are open, and the reasons."""

    config: EngineConfig
    reasons: Mapping[str, str]
    """Option name -> why it has its value, for derived values."""
    defaults: DeviceDefaults
    """Sizes of this machine, where nothing sets others."""

    def because(self, config: EngineConfig | None = None, /, **reasons: str) -> Resolution:
        """Return the same with more reasons, which replace those of the same options, and with another config, if one
        is given."""
        return replace(self, config=self.config if config is None else config, reasons={**self.reasons, **reasons})


def resolve(config: EngineConfig, device_type: str, *, has_amx: bool = False) -> Resolution:
    """Resolve open options.

    Args:
        device_type: resolved type of the device, "cpu" or "cuda".
        has_amx: whether its kernels multiply by AMX.

    Raises:
        ConfigError: an option, or a combination, that cannot be honoured, by name and value.
    """
    for group in ENGINE_GROUPS:
        check_values(getattr(config, group))
    defaults = replace(DEFAULTS[device_type], chunk=AMX_CHUNK) if has_amx else DEFAULTS[device_type]
    why: dict[str, str] = {}
    config = replace(config, scheduler=_with_policy(config.scheduler, why))
    refuse_contradictions(config, device_type)
    refuse_ranks(config)
    refuse_lookahead(config, device_type)
    if config.parallel.pp_size > 1 and config.scheduler.sliced_chunk_size is None:
        why["sliced_chunk_size"] = f"off with --pp-size {config.parallel.pp_size}"
    if config.parallel.pp_size > 1 and config.scheduler.itl_target is None:
        why["itl_target"] = f"off with --pp-size {config.parallel.pp_size}"
    overlap = _overlap(config.scheduler, config.parallel.pp_size, why)
    page_size = _page_size(config, defaults, device_type, why)
    sizes = _sizes(config.scheduler, page_size, defaults, device_type, why)
    scheduler = replace(config.scheduler, **overlap, **sizes)
    partial = _partial_prefills(scheduler, why)
    scheduler = replace(scheduler, max_partial_prefills=partial)
    if scheduler.reserve == "ratio" and scheduler.schedule_conservativeness is None:
        scheduler = replace(scheduler, schedule_conservativeness=1.0)
    speculative = replace(config.speculative, **speculation_sizes(config.speculative, why))
    cache = replace(config.cache, page_size=page_size, **_tiers(config.cache, device_type, why))
    config = replace(config, cache=cache, scheduler=scheduler, speculative=speculative)
    config = replace(config, lora=_with_places(config.lora, why))
    offload = replace(config.offload, **_offload(config, device_type, why))
    return Resolution(replace(config, offload=offload), why, defaults)


def with_target(resolved: Resolution, target: str, device_type: str, why: str) -> Resolution:
    """Return options with an ITL target, and with the sizes that follow from it, which none of them may set.

    Args:
        why: they have it.
    """
    config, reasons = resolved.config, {"itl_target": why}
    page_size = config.cache.page_size
    assert page_size is not None, f"not resolved: {config}"
    open_sizes = replace(config.scheduler, itl_target=target, chunked_prefill_size=None, max_batch_tokens=None)
    scheduler = replace(open_sizes, **_sizes(open_sizes, page_size, resolved.defaults, device_type, reasons))
    return resolved.because(replace(config, scheduler=scheduler), **reasons)


def _with_policy(config: SchedulerConfig, why: dict[str, str]) -> SchedulerConfig:
    """Return the options with a policy, and with priority classes if it needs them."""
    itl_target, given = itl_micros(config.itl_target), config.priority_classes
    if config.schedule_policy is None:
        why["schedule_policy"] = "default" if given is None else "--priority-classes"
        config = replace(config, schedule_policy="fcfs" if given is None else "deadline")
    if config.schedule_policy != "deadline":
        if given is not None:
            raise ConfigError(
                f"--priority-classes {given} needs --schedule-policy deadline, got {config.schedule_policy!r}"
            )
        return config
    classes_of(given, itl_target)
    if given is None:
        why["priority_classes"] = "default"
        config = replace(config, priority_classes=default_classes(itl_target))
    return config


def _with_places(config: LoraConfig, why: dict[str, str]) -> LoraConfig:
    """Return the options with the places for adapters, if there are to be any."""
    check_lora(config)
    limits = config.limits()
    if limits is None:
        return config
    if not config.enable_lora:
        why["enable_lora"] = "--lora-modules"
    for name in ("max_loras", "max_lora_rank"):
        if getattr(config, name) is None:
            why[name] = "default"
    return replace(config, enable_lora=True, max_loras=limits.max_loras, max_lora_rank=limits.max_lora_rank)


def _tiers(cache: CacheConfig, device_type: str, why: dict[str, str]) -> dict[str, Any]:
    if cache.kv_host_bytes is not None and device_type == "cpu" and cache.max_total_tokens is None:
        raise ConfigError(
            f"--kv-host-bytes {cache.kv_host_bytes} needs a KV pool of a set size (--max-total-tokens) on a CPU: there"
            f" the pool is host memory already, and takes all that can be used"
        )
    if cache.kv_disk is None and cache.kv_disk_bytes is not None:
        raise ConfigError(f"--kv-disk-bytes {cache.kv_disk_bytes} needs a file (--kv-disk FILE)")
    tier = {"kv_host_bytes": cache.kv_host_bytes, "kv_disk": cache.kv_disk}
    given = next((name for name, value in tier.items() if value is not None), None)
    if given is None:
        if cache.kv_write_policy is not None:
            raise ConfigError(f"--kv-write-policy {cache.kv_write_policy} needs a tier to write to (--kv-disk FILE)")
        return {}
    if not cache.enable_prefix_caching:
        raise ConfigError(f"{flag(given)} needs the prefix cache, but --enable-prefix-caching is off")
    filled: dict[str, Any] = {}
    if cache.kv_disk is not None and cache.kv_disk_bytes is None:
        filled["kv_disk_bytes"], why["kv_disk_bytes"] = DISK_BYTES, "default"
    if cache.kv_write_policy is None:
        filled["kv_write_policy"], why["kv_write_policy"] = "write-through", "default"
    return filled


def offload_tier(config: EngineConfig, device_type: str) -> Tier | None:
    """Return the tier that holds contexts longer than the device: memory that its copies reach, on a CPU a disk first,
    as the larger one. None without one, and beside several ranks."""
    cache = config.cache
    if layout_of(config.parallel).size > 1:
        return None
    if device_type == "cpu" and cache.kv_disk is not None:
        return Tier.DISK
    return None if cache.kv_host_bytes is None else Tier.HOST


def _offload(config: EngineConfig, device_type: str, why: dict[str, str]) -> dict[str, Any]:
    offload = config.offload
    if offload_tier(config, device_type) is None:
        needed = "host memory (--kv-host-bytes N)"
        if device_type == "cpu":
            needed = f"a disk (--kv-disk FILE) or {needed}"
        for item in fields(offload):
            if (value := getattr(offload, item.name)) is not None:
                raise ConfigError(f"{flag(item.name)} {value} needs {needed} for contexts longer than the device")
        return {}
    page_size = config.cache.page_size
    assert page_size is not None
    filled: dict[str, Any] = {}
    if offload.ring_blocks is None:
        filled["ring_blocks"], why["ring_blocks"] = RING_BLOCKS, "default"
    if offload.ring_block_tokens is None:
        filled["ring_block_tokens"], why["ring_block_tokens"] = RING_BLOCK_TOKENS, "default"
        if device_type == "cpu":
            why["ring_block_tokens"] = "measured when the model is loaded: what loads in 0.2 ms, if that is more"
    elif offload.ring_block_tokens % page_size:
        raise ConfigError(
            f"--ring-block-tokens must be a multiple of --page-size {page_size}, got {offload.ring_block_tokens}"
        )
    if offload.sparse_policy is None:
        filled["sparse_policy"], why["sparse_policy"] = FULL, "default"
    else:
        sparse_sizes(offload.sparse_policy, page_size)
    return filled


def _overlap(config: SchedulerConfig, stages: int, why: dict[str, str]) -> dict[str, Any]:
    depth, lookahead = config.depth, config.lookahead
    if depth is None and stages > 1:
        depth, why["depth"] = stages + 1, "one step in each stage of --pp-size, and the next one"
    if config.enable_overlap:
        if (depth or 2) < 2 or lookahead == 0:
            raise ConfigError(
                f"--enable-overlap means at least --depth 2 and --lookahead 1, got depth {depth}, lookahead {lookahead}"
            )
        if depth is None:
            depth, why["depth"] = 2, "--enable-overlap"
        if lookahead is None:
            lookahead, why["lookahead"] = 1, "--enable-overlap"
    if depth is None:
        depth, why["depth"] = 1, "default: synchronous"
    if lookahead is None:
        lookahead, why["lookahead"] = 0, "default: plan nothing before its input is known"
    if not 0 <= lookahead < depth:
        raise ConfigError(f"--lookahead must be from 0 to depth - 1 = {depth - 1}, got {lookahead}")
    return {"depth": depth, "lookahead": lookahead}


def _page_size(config: EngineConfig, defaults: DeviceDefaults, device_type: str, why: dict[str, str]) -> int:
    limits = page_limits(config.scheduler, config.cache)
    size = config.cache.page_size
    if size is not None:
        if size > MAX_PAGE_SIZE or size & (size - 1):
            raise ConfigError(f"--page-size must be a power of two of at most {MAX_PAGE_SIZE}, got {size}")
        for name, limit in limits.items():
            if limit < size:
                raise ConfigError(f"{name} must be at least one page, got {limit} with --page-size {size}")
        return size
    size = defaults.page_size
    why["page_size"] = f"default on {device_type}"
    if config.scheduler.max_batch_tokens is not None and config.scheduler.max_running_requests is None:
        limits["half of --max-batch-tokens"] = max(1, config.scheduler.max_batch_tokens // 2)
    for name, limit in limits.items():
        while size > 1 and limit < size:
            size //= 2
            why["page_size"] = f"at most {name} ({limit})"
    return size


def page_limits(scheduler: SchedulerConfig, cache: CacheConfig) -> dict[str, int]:
    """Return the set sizes into which a page has to fit, by name."""
    limits: dict[str, int | None] = {
        "--chunked-prefill-size": None
        if scheduler.chunked_prefill_size in CHUNKING_OFF
        else scheduler.chunked_prefill_size,
        "--sliced-chunk-size": scheduler.sliced_chunk_size,
        "--max-prefill-tokens": scheduler.max_prefill_tokens,
        "--long-prefill-token-threshold": scheduler.long_prefill_token_threshold,
        "--max-total-tokens": cache.max_total_tokens,
    }
    batch, running = scheduler.max_batch_tokens, scheduler.max_running_requests
    if batch is not None and batch > (running or 1):
        limits["--max-batch-tokens less running decodes"] = batch - (running or 1)
    return {name: limit for name, limit in limits.items() if limit is not None and limit >= 1}


def _sizes(
    config: SchedulerConfig, page_size: int, defaults: DeviceDefaults, device_type: str, why: dict[str, str]
) -> dict[str, Any]:
    chunk, batch, running = config.chunked_prefill_size, config.max_batch_tokens, config.max_running_requests
    if chunk is not None and chunk < -1:
        raise ConfigError(f"--chunked-prefill-size must be at least 1, or -1 or 0 for off, got {chunk}")
    if batch is not None and batch <= (running or 1):
        raise ConfigError(
            f"--max-batch-tokens must be larger than --max-running-requests, or running decodes alone could fill"
            f" every step: got {batch} with {running or 1} running"
        )
    if running is None:
        running, why["max_running_requests"] = defaults.running, f"default on {device_type}"
        if batch is not None and batch - page_size < running:
            running = batch - page_size
            why["max_running_requests"] = "leaves a page of --max-batch-tokens to prefill"
    if chunk is None:
        with_amx = " with AMX" if defaults.chunk == AMX_CHUNK else ""
        chunk, why["chunked_prefill_size"] = defaults.chunk, f"default on {device_type}{with_amx}"
        if itl_micros(config.itl_target):
            chunk *= TIMED_CHUNKS
            why["chunked_prefill_size"] += f", times {TIMED_CHUNKS} as --itl-target sizes chunks"
        if chunk < page_size:
            chunk, why["chunked_prefill_size"] = page_size, "one page"
        if batch is not None and batch < chunk:
            chunk, why["chunked_prefill_size"] = batch, "--max-batch-tokens"
    if chunk in CHUNKING_OFF:
        chunk = 0
    if batch is None:
        batch = (chunk or UNCHUNKED_BATCH_TOKENS) + running
        name = "--chunked-prefill-size" if chunk else f"{UNCHUNKED_BATCH_TOKENS} as prompts are not cut"
        why["max_batch_tokens"] = f"{name} + --max-running-requests"
    return {"chunked_prefill_size": chunk, "max_batch_tokens": batch, "max_running_requests": running}


def _partial_prefills(config: SchedulerConfig, why: dict[str, str]) -> int:
    running, partial = config.max_running_requests, config.max_partial_prefills
    assert running is not None
    if partial is not None:
        if partial > running:
            raise ConfigError(f"--max-partial-prefills must be at most --max-running-requests {running}, got {partial}")
        return partial
    if config.chunked_prefill_size == 0:
        why["max_partial_prefills"] = "prompts are not cut"
        return 1
    why["max_partial_prefills"] = "default" if running >= PARTIAL_PREFILLS else "--max-running-requests"
    return min(PARTIAL_PREFILLS, running)

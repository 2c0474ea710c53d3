"""From options to the engine that is simulated: the measured one, with what the options change."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, replace
from typing import Any

from msgspec.structs import replace as with_fields

from sluice.assembly.resolve import resolve
from sluice.config import ConfigError, EngineConfig, SchedulerConfig
from sluice.config.engine import canonical
from sluice.scheduler.setup import SchedulerSetup
from sluice.scheduler.window_reserve import window_reserve
from sluice.sim.machine import Machine
from sluice.types import CACHED_SHARE, SchedulerLimits, TierLimits, WindowLimits

LIMITS_OF: Mapping[str, str] = {
    "schedule_policy": "policy",
    "schedule_conservativeness": "conservativeness",
    "schedule_low_priority_values_first": "low_priority_values_first",
    "enable_priority_preemption": "priority_preemption",
    "priority_classes": "classes",
}
"""Options whose limits have other names."""
POOL = ("page_size", "max_total_tokens", "enable_prefix_caching")
OPTIONS = (*(item.name for item in fields(SchedulerConfig)), *POOL)
"""Options that a simulation can change."""


def changed(machine: Machine, given: Mapping[str, Any], tiers: Mapping[str, Any] | None = None) -> Machine:
    """Return a machine whose engine has these options, and what follows from them; all others stay as they were.

    Args:
        given: options by name.
        tiers: fields of `TierLimits`.

    Raises:
        ConfigError: an option that cannot be honoured, or one that a simulation cannot change.
    """
    given = canonical(given)
    if refused := given.keys() - set(OPTIONS):
        raise ConfigError(f"{sorted(refused)[0]} cannot be simulated; of the engine's options {', '.join(OPTIONS)} can")
    setup, depth = machine.setup, machine.depth
    page_size, num_pages = _pool(setup, given)
    if given:
        limits, depth = _limits(machine, given, page_size)
        setup = replace(setup, limits=limits)
    caching = given.get("enable_prefix_caching", setup.prefix_caching)
    setup = replace(setup, page_size=page_size, num_pages=num_pages, prefix_caching=caching)
    if setup.windows is not None:
        length, longest = setup.windows.length, num_pages * page_size
        reserve = window_reserve(setup.limits, length, page_size, depth, longest)
        pages = min(num_pages, reserve + num_pages // CACHED_SHARE)
        setup = replace(setup, windows=WindowLimits(length, pages))
    if tiers:
        setup = replace(setup, tiers=replace(setup.tiers, **tiers))
    if setup.tiers != TierLimits() and not caching and setup.offload is None:
        raise ConfigError("tiers hold cached prefixes; they need --enable-prefix-caching")
    longest = setup.num_pages * setup.page_size
    if setup.limits.chunked_prefill_size > longest:
        raise ConfigError(
            f"--chunked-prefill-size {setup.limits.chunked_prefill_size} is more than the pool's {longest} tokens"
        )
    return with_fields(machine, setup=setup, depth=depth)


def _pool(setup: SchedulerSetup, given: Mapping[str, Any]) -> tuple[int, int]:
    """Return the tokens of a page, and the pages: those of as many tokens as before, if their size changes alone."""
    page_size = given.get("page_size") or setup.page_size
    if page_size != setup.page_size and setup.offload is not None:
        raise ConfigError(f"--page-size {page_size}: contexts on tiers were measured with pages of {setup.page_size}")
    tokens = given.get("max_total_tokens") or setup.num_pages * setup.page_size
    if tokens < page_size:
        raise ConfigError(f"--max-total-tokens {tokens} is less than a page of {page_size}")
    return page_size, tokens // page_size


def _limits(machine: Machine, given: Mapping[str, Any], page_size: int) -> tuple[SchedulerLimits, int]:
    """Return the limits and the steps in flight of the measured engine with these options."""
    plain = resolve(EngineConfig.from_options({"page_size": page_size}), machine.device).config.scheduler
    asked = resolve(EngineConfig.from_options({"page_size": page_size, **given}), machine.device).config.scheduler
    assert asked.depth is not None and plain.depth is not None, "resolved"
    before, after = plain.limits(), asked.limits()
    named = {LIMITS_OF.get(name, name) for name in given}
    follow = {
        item.name: getattr(after, item.name)
        for item in fields(SchedulerLimits)
        if item.name in named or getattr(after, item.name) != getattr(before, item.name)
    }
    limits = _with_slices(replace(machine.setup.limits, **follow), is_asked=bool(given.get("sliced_chunk_size")))
    if limits.max_batch_tokens <= limits.max_running_requests:
        raise ConfigError(
            f"--max-batch-tokens {limits.max_batch_tokens} must be more than --max-running-requests"
            f" {limits.max_running_requests}"
        )
    is_named = "depth" in given or asked.depth != plain.depth
    return limits, asked.depth if is_named else machine.depth


def _with_slices(limits: SchedulerLimits, *, is_asked: bool) -> SchedulerLimits:
    """Return limits without sliced chunks if others of them keep a server from having any."""
    size = limits.sliced_chunk_size
    has_effect = limits.itl_target and not limits.max_prefill_tokens and not limits.long_prefill_token_threshold
    if size and not (has_effect or is_asked):
        return replace(limits, sliced_chunk_size=0)
    if size and not limits.num_layers:
        raise ConfigError(
            f"--sliced-chunk-size {size} cannot be simulated: the engine was measured without such chunks"
        )
    return limits

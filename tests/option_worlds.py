"""Worlds made from options as users give them, and what is seen of them when requests arrive at given steps."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from recording import RecordingRunner
from sluice.assembly.offloading import Costs, Sizes, offload_limits
from sluice.assembly.resolve import offload_tier, resolve
from sluice.config import CacheConfig, EngineConfig
from sluice.types import BatchPlan, OffloadLimits, TierLimits
from worlds import Arrival, SlowDisk, World, check_ends, enough_steps

SMALL: Mapping[str, Any] = {
    "page_size": 4,
    "max_total_tokens": 96,
    "chunked_prefill_size": 16,
    "max_running_requests": 4,
}
"""Options under which a few short requests meet every limit."""
PAGE_BYTES = 1000
"""Of a page behind the device."""
MOST_PAGES = 1000


class Seen(NamedTuple):
    """What an observer of the runner and of the link can tell."""

    plans: tuple[BatchPlan, ...]
    depths: tuple[int, ...]
    """Steps in flight after each turn of the loop."""


def world_of(options: Mapping[str, Any]) -> World:
    """
    Raises:
        ConfigError: the options are refused.
    """
    device = "cuda" if options.get("kv_host_bytes") else "cpu"  # only one of them takes it
    config = resolve(EngineConfig.from_options(options), device).config
    page_size, tokens, depth = config.cache.page_size, config.cache.max_total_tokens, config.scheduler.depth
    assert page_size is not None
    assert tokens is not None
    assert depth is not None
    return World(
        limits=replace(config.scheduler.limits(), num_draft_tokens=config.speculative.drafts(), num_layers=3),
        num_pages=tokens // page_size,
        page_size=page_size,
        prefix_caching=config.cache.enable_prefix_caching,
        depth=depth,
        late=depth > 1,
        tiers=tiers_of(config.cache),
        offload=offload_of(config, page_size, tokens // page_size, device),
        drafting=config.speculative.limits(),
    )


def tiers_of(cache: CacheConfig) -> TierLimits:
    """As a model of small pages would have them."""
    disk = 0 if cache.kv_disk is None else cache.kv_disk_bytes
    assert disk is not None
    return TierLimits(
        host_pages=(cache.kv_host_bytes or 0) // PAGE_BYTES,
        disk_pages=min(disk // PAGE_BYTES, MOST_PAGES),
        write_policy=cache.kv_write_policy or "write-through",
        copies_per_step=4,
        copies_in_flight=8,
    )


def offload_of(config: EngineConfig, page_size: int, num_pages: int, device: str) -> OffloadLimits | None:
    """As a model of two layers would have them."""
    tier, scheduler = offload_tier(config, device), config.scheduler.limits()
    if tier is None:
        return None
    step_tokens = scheduler.chunked_prefill_size or scheduler.max_batch_tokens
    sizes = Sizes(tier, PAGE_BYTES, page_size, num_pages, 2, step_tokens, device)
    return offload_limits(config.offload, sizes, Costs(pair=0.01, load=0.1))


def play(world: World, arrivals: Sequence[Arrival]) -> Seen:
    """Run an engine that obeys every law until all requests have ended as the oracle says."""
    bench = SlowDisk(world, None, RecordingRunner).bench()
    runner = bench.engine.runner
    assert isinstance(runner, RecordingRunner)
    submits = {arrival.submit.request_id: arrival.submit for arrival in arrivals}
    todo, depths = sorted(arrivals, key=lambda arrival: arrival.step), []
    while todo or not bench.engine.is_idle:
        while todo and todo[0].step <= len(depths):
            bench.link.put(todo.pop(0).submit)
        bench.step()
        depths.append(len(bench.engine.in_flight))
        assert len(depths) <= enough_steps(submits), f"law 12: still busy after {len(depths)} steps"
    check_ends(bench, submits)
    return Seen(tuple(runner.plans), tuple(depths))

"""From the engine of a machine to the options of a server that has the same limits, pool and steps in flight."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import fields
from typing import Any

from sluice.assembly.resolve import resolve
from sluice.config import ConfigError, EngineConfig, SchedulerConfig
from sluice.sim.machine import Machine
from sluice.sim.settings import LIMITS_OF
from sluice.types import CHUNKS_BY_TIME, PriorityClass, SchedulerLimits

UNLIMITED = (
    "max_prefill_tokens",
    "long_prefill_token_threshold",
    "max_prefill_requests",
    "max_queued_requests",
    "max_queued_tokens",
)
"""Limits that are 0 if their option is left out."""


def serving_options(machine: Machine) -> dict[str, Any]:
    """Return the options that differ from what a server of these options does by default, with the size of the pool if
    it was measured. Sizes of tiers are no options of a simulation, and are left out."""
    setup = machine.setup
    wanted = _spelled(setup.limits, machine.depth, setup.page_size, caching=setup.prefix_caching)
    try:
        found = _needed(wanted, machine.device)
    except ConfigError:  # the defaults here contradict some of them, so none is left out
        found = {name: value for name, value in wanted.items() if value is not None}
    found |= _without_slices(machine, found)
    if machine.is_measured:
        found["max_total_tokens"] = setup.num_pages * setup.page_size
    return found


def _without_slices(machine: Machine, found: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options that keep a server with the found ones from dividing chunks among steps, as the engine did
    not. Whether it would depends on the model, which is not known here."""
    limits = machine.setup.limits
    if limits.sliced_chunk_size or "chunked_prefill_size" in found or not limits.chunked_prefill_size:
        return {}
    if limits.itl_target:
        return {"sliced_chunk_size": 0}
    has_default = machine.device == "cpu" and limits.schedule == "mixed" and not limits.dynamic_chunking
    return {"itl_target": "off"} if has_default and "max_batch_tokens" not in found else {}


def _needed(wanted: Mapping[str, Any], device: str) -> dict[str, Any]:
    """Return the options from which all others follow."""
    found = dict[str, Any]()
    for _ in range(2):  # an option changes the defaults of others
        by_default = _resolved(device, found)
        found |= {name: value for name, value in wanted.items() if value is not None and by_default[name] != value}
    for name in reversed(list(found)):
        rest = {other: value for other, value in found.items() if other != name}
        try:
            follows = _resolved(device, rest) == wanted
        except ConfigError:
            continue
        found = rest if follows else found
    return found


def _resolved(device: str, options: Mapping[str, Any]) -> dict[str, Any]:
    """Return what a server with these options has."""
    config = resolve(EngineConfig.from_options(options), device).config
    depth, page_size = config.scheduler.depth, config.cache.page_size
    assert depth is not None and page_size is not None, "resolved"
    return _spelled(config.scheduler.limits(), depth, page_size, caching=config.cache.enable_prefix_caching)


def _spelled(limits: SchedulerLimits, depth: int, page_size: int, *, caching: bool) -> dict[str, Any]:
    """Return limits as options; None: the option is left out."""
    found: dict[str, Any] = {"depth": depth, "page_size": page_size, "enable_prefix_caching": caching}
    known = {item.name for item in fields(limits)}
    for item in fields(SchedulerConfig):
        name = LIMITS_OF.get(item.name, item.name)
        if name in known:
            value = getattr(limits, name)
            found[item.name] = None if item.name in UNLIMITED and not value else value
    chunks, target = limits.dynamic_chunking, limits.itl_target
    found["dynamic_chunking"] = 0 if chunks == CHUNKS_BY_TIME else chunks or None
    found["itl_target"] = f"{-target}x" if target < 0 else _time(target) if target else "off"
    found["priority_classes"] = _classes(limits.classes) or None
    if not chunks:
        found["dynamic_chunking_smoothing"] = None
    if not target:
        found["itl_quantile"] = None
    return found


def _classes(classes: Iterable[PriorityClass]) -> str:
    return ",".join(
        f"{each.name}:ttft={_time(each.ttft_target)}" + (f":itl={_time(each.itl_target)}" if each.itl_target else "")
        for each in classes
    )


def _time(micros: int) -> str:
    return f"{micros}us" if micros % 1000 else f"{micros // 1000}ms"

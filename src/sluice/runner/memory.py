"""How large the KV pool may be.

Asked for, the pool is what was asked, or refused if it cannot be had. Left open, it is a fixed share of what is free
after the model has loaded, and never more than what `max_running_requests` requests of full length could fill.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import torch

from sluice.cgroups import ROOT, Group, groups
from sluice.config import ConfigError

SHARE: Mapping[str, float] = {"cpu": 0.5, "cuda": 0.85}
"""Of free memory, what an open pool size takes. A CPU's memory is shared with everything else on the machine, and its
pool is only committed as it fills; a GPU is ours, and what is left holds activations and logits."""

GIB = 1 << 30


@dataclass(frozen=True, slots=True)
class PoolRequest:
    """What a KV pool is for."""

    page_size: int
    bytes_per_token: int
    """Keys and values of all layers."""
    max_model_len: int
    max_running_requests: int
    max_total_tokens: int | None
    """Asked for by the user, or None."""

    @property
    def page_bytes(self) -> int:
        return self.page_size * self.bytes_per_token

    @property
    def useful_pages(self) -> int:
        """More than this can never be in use at once."""
        return self.max_running_requests * -(-self.max_model_len // self.page_size)


def pool_pages(request: PoolRequest, free_bytes: int, device_type: str) -> int:
    """The number of pages, at least 1; a size asked for is rounded down to whole pages.

    Args:
        free_bytes: memory free on the device once the model is loaded.
        device_type: "cpu" or "cuda".

    Raises:
        ConfigError: the size asked for is below one page or does not fit, or not even one page fits.
    """
    if request.max_total_tokens is None:
        share = SHARE[device_type]
        pages = min(request.useful_pages, int(free_bytes * share) // request.page_bytes)
        if pages < 1:
            raise ConfigError(
                f"no room for the KV pool: one page of {request.page_size} tokens takes {request.page_bytes} bytes,"
                f" and of the {_gib(free_bytes)} GiB free on {device_type} {share:.0%} may be used; free some memory,"
                f" or set a smaller --page-size or an explicit --max-total-tokens"
            )
        return pages
    pages = request.max_total_tokens // request.page_size
    if pages < 1:
        raise ConfigError(
            f"--max-total-tokens must be at least one page, got {request.max_total_tokens}"
            f" with --page-size {request.page_size}"
        )
    if pages * request.page_bytes > free_bytes:
        fits = free_bytes // request.page_bytes * request.page_size
        raise ConfigError(
            f"--max-total-tokens {request.max_total_tokens} takes {_gib(pages * request.page_bytes)} GiB of KV, but"
            f" only {_gib(free_bytes)} GiB are free on {device_type}; at most {fits} tokens fit"
        )
    return pages


def free_memory(device: torch.device, root: Path = ROOT) -> int:
    """Bytes that can still be allocated on a device: of the machine and of the container this runs in.

    Args:
        root: where /proc and /sys are found.
    """
    if device.type == "cuda":
        free, _ = torch.cuda.mem_get_info(device)
        return int(free)
    left = (_group_left(group) for group in groups("memory", root))
    return max(0, min([_machine_free(root), *(count for count in left if count is not None)]))


def _machine_free(root: Path) -> int:
    """What Linux thinks can be had without swapping; elsewhere all the memory there is."""
    meminfo = root / "proc/meminfo"
    if not meminfo.exists():
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return _table(meminfo)["MemAvailable:"] * 1024


class _Names(NamedTuple):
    """How a version of the interface of control groups calls things."""

    limit: str
    usage: str
    reclaimable: str
    """In memory.stat: file cache that is given up before the limit bites."""


NAMES: Mapping[int, _Names] = {
    1: _Names("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
    2: _Names("memory.max", "memory.current", "inactive_file"),
}


def _group_left(group: Group) -> int | None:
    """What a group may still use; None if it sets no limit, or is not visible from inside this container."""
    names = NAMES[group.version]
    limit, usage = group.folder / names.limit, group.folder / names.usage
    if not limit.exists() or not usage.exists():
        return None
    allowed = limit.read_text().strip()
    if allowed == "max":
        return None
    reclaimable = _table(group.folder / "memory.stat").get(names.reclaimable, 0)
    return int(allowed) - int(usage.read_text()) + reclaimable


def _table(path: Path) -> dict[str, int]:
    """Lines of a name, a number and perhaps a unit."""
    lines = (line.split() for line in path.read_text().splitlines())
    return {words[0]: int(words[1]) for words in lines if len(words) > 1}


def _gib(count: int) -> str:
    return f"{count / GIB:.2f}"

"""How large the KV pool may be.

Asked for, the pool is what was asked, or refused if it cannot be had. Left open, it is what `Room` says is left for it
after the model has loaded, and never more than what `max_running_requests` requests of full length could fill.

A CPU's memory is shared with everything else on the machine, and its pool is only committed as it fills, so a share of
it is taken. A GPU is ours: all of it is, but for what the largest step was seen to take, CUDA graphs and a reserve.
"""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import torch

from sluice.config import ConfigError
from sluice.device.cgroups import ROOT, Group, groups

CPU_SHARE = 0.5
"""Of free memory, what an open pool size takes on a CPU."""
RESERVED_SHARE = 0.03
"""Of a GPU's memory, what is left alone: for fragments between what the allocator hands out."""
RESERVED_BYTES = 512 << 20
"""The least that is left alone."""

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


@dataclass(frozen=True, slots=True)
class Room:
    """What a pool may take on a device."""

    open_bytes: int
    """If its size is open."""
    most_bytes: int
    """If its size was asked for."""
    told: str
    """Where these come from, for messages."""
    device_type: str


def cpu_room(free_bytes: int) -> Room:
    """
    Args:
        free_bytes: memory free once the model is loaded.
    """
    told = f"of the {_gib(free_bytes)} GiB free on cpu {CPU_SHARE:.0%} may be used"
    return Room(int(free_bytes * CPU_SHARE), free_bytes, told, "cpu")


@dataclass(frozen=True, slots=True)
class CudaMemory:
    """A GPU's memory once the model is loaded, in bytes."""

    total: int
    free: int
    step: int
    """What the largest step takes beside weights and KV."""
    graphs: int
    """What CUDA graphs will take."""


def cuda_room(memory: CudaMemory, fraction: float | None) -> Room:
    """
    Args:
        fraction: `--mem-fraction-static`: of all memory, what weights, KV and everything else that is there already may
            take together. None: all but what a step, graphs and the reserve need.

    Raises:
        ConfigError: the fraction leaves too little for a step.
    """
    left = memory.free - memory.step - memory.graphs
    needs = f"a step takes up to {_gib(memory.step)} GiB and CUDA graphs {_gib(memory.graphs)} GiB"
    free = f"of {_gib(memory.total)} GiB on cuda {_gib(memory.free)} GiB are free, {needs}"
    if fraction is None:
        reserve = max(RESERVED_BYTES, int(memory.total * RESERVED_SHARE))
        told = f"{free}, and {_gib(reserve)} GiB are left alone"
        return Room(max(0, left - reserve), max(0, left), told, "cuda")
    used = memory.total - memory.free
    wanted = int(fraction * memory.total) - used
    if wanted > left:
        raise ConfigError(
            f"--mem-fraction-static {fraction} leaves too little: {free}; at most"
            f" {_floor2((used + max(0, left)) / memory.total)} fits, or lower --chunked-prefill-size or"
            f" --max-running-requests"
        )
    told = (
        f"--mem-fraction-static {fraction} of {_gib(memory.total)} GiB, {_gib(used)} GiB of them in use, is the limit"
    )
    return Room(max(0, wanted), max(0, left), told, "cuda")


def pool_pages(request: PoolRequest, room: Room) -> int:
    """The number of pages, at least 1; a size asked for is rounded down to whole pages.

    Raises:
        ConfigError: the size asked for is below one page or does not fit, or not even one page fits.
    """
    if request.max_total_tokens is None:
        pages = min(request.useful_pages, room.open_bytes // request.page_bytes)
        if pages < 1:
            raise ConfigError(
                f"no room for the KV pool: one page of {request.page_size} tokens takes {request.page_bytes} bytes,"
                f" and {room.told}; free some memory, or set a smaller --page-size or an explicit --max-total-tokens"
            )
        return pages
    pages = request.max_total_tokens // request.page_size
    if pages < 1:
        raise ConfigError(
            f"--max-total-tokens must be at least one page, got {request.max_total_tokens}"
            f" with --page-size {request.page_size}"
        )
    if pages * request.page_bytes > room.most_bytes:
        fits = room.most_bytes // request.page_bytes * request.page_size
        raise ConfigError(
            f"--max-total-tokens {request.max_total_tokens} takes {_gib(pages * request.page_bytes)} GiB of KV, but"
            f" only {_gib(room.most_bytes)} GiB are free for it on {room.device_type}; at most {fits} tokens fit"
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


def _floor2(share: float) -> float:
    return math.floor(share * 100) / 100

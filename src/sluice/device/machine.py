"""What this process may use of its machine: processor cores and memory.

Containers limit both by control groups, of which Linux has two versions.
"""

from __future__ import annotations

import ctypes
import os
import platform
import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path, PurePosixPath
from typing import NamedTuple

import torch

ROOT = Path("/")
"""Where /proc and /sys are found."""


def usable_cores() -> int:
    """Return how many physical cores this process may keep busy, at least 1.

    Of the processors it may run on, the hardware threads of one core count once, and its control groups may grant it
    less processor time than that.
    """
    cores = physical_cores(usable_processors())
    quota = time_quota()
    return cores if quota is None else max(1, min(cores, int(quota)))


def processor_name(root: Path = ROOT) -> str:
    """Return the name of the machine's processor, as far as it is known."""
    with suppress(OSError):
        for line in (root / "proc/cpuinfo").read_text().splitlines():
            name, _, value = line.partition(":")
            if name.strip() == "model name":
                return value.strip()
    return platform.processor() or "unknown processor"


def usable_processors() -> frozenset[int]:
    """Return the processors (hardware threads) that affinity and cpuset let this process run on."""
    if sys.platform == "linux":
        return frozenset(os.sched_getaffinity(0))
    return frozenset(range(os.cpu_count() or 1))


def physical_cores(processors: Iterable[int], root: Path = ROOT) -> int:
    """Return the number of cores these processors belong to. A processor of an unknown core counts as one."""
    return len({_core_of(processor, root) for processor in processors})


def _core_of(processor: int, root: Path) -> tuple[str, ...]:
    topology = root / f"sys/devices/system/cpu/cpu{processor}/topology"
    files = topology / "physical_package_id", topology / "core_id"
    if not all(file.exists() for file in files):
        return (str(processor),)
    return tuple(file.read_text().strip() for file in files)


def time_quota(root: Path = ROOT) -> float | None:
    """Return how many processors' time the control groups of this process grant it; None if they set no limit."""
    found = [quota for group in _groups("cpu", root) if (quota := _quota(group)) is not None]
    return min(found, default=None)


def _quota(group: _Group) -> float | None:
    if group.version == 2:
        file = group.folder / "cpu.max"
        if not file.exists():
            return None
        allowed, period = file.read_text().split()
        return None if allowed == "max" else int(allowed) / int(period)
    quota, length = group.folder / "cpu.cfs_quota_us", group.folder / "cpu.cfs_period_us"
    if not quota.exists() or not length.exists():
        return None
    microseconds = int(quota.read_text())
    return None if microseconds < 0 else microseconds / int(length.read_text())


def free_memory(device: torch.device, root: Path = ROOT) -> int:
    """Return how many bytes can still be allocated on a device, within what the machine and the container allow."""
    if device.type == "cuda":
        free, _ = torch.cuda.mem_get_info(device)
        return int(free)
    left = (_memory_left(group) for group in _groups("memory", root))
    return max(0, min([_machine_free(root), *(count for count in left if count is not None)]))


def _machine_free(root: Path) -> int:
    """Return the memory that Linux can give without swapping; on other systems all the memory there is."""
    meminfo = root / "proc/meminfo"
    if not meminfo.exists():
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return _table(meminfo)["MemAvailable:"] * 1024


class _MemoryFiles(NamedTuple):
    """Names in the folder of a control group."""

    limit: str
    usage: str
    reclaimable: str
    """Line of memory.stat: file cache that is given up before the limit is enforced."""


MEMORY_FILES: Mapping[int, _MemoryFiles] = {
    1: _MemoryFiles("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
    2: _MemoryFiles("memory.max", "memory.current", "inactive_file"),
}
"""File names by version of control groups."""


def _memory_left(group: _Group) -> int | None:
    """Return what a group may still use; None if it sets no limit, or is not visible inside this container."""
    names = MEMORY_FILES[group.version]
    limit, usage = group.folder / names.limit, group.folder / names.usage
    if not limit.exists() or not usage.exists():
        return None
    allowed = limit.read_text().strip()
    if allowed == "max":
        return None
    reclaimable = _table(group.folder / "memory.stat").get(names.reclaimable, 0)
    return int(allowed) - int(usage.read_text()) + reclaimable


def _table(path: Path) -> dict[str, int]:
    """Read lines that hold a name, a number and perhaps a unit."""
    lines = (line.split() for line in path.read_text().splitlines())
    return {words[0]: int(words[1]) for words in lines if len(words) > 1}


class _Group(NamedTuple):
    """A control group that may limit this process."""

    folder: Path
    """Missing if the group is not visible inside this container."""
    version: int
    """1 or 2: files have other names."""


def _groups(controller: str, root: Path) -> Iterator[_Group]:
    """Yield the control groups of this process and all groups above them, whose limits hold for it as well.

    Args:
        controller: what is limited, "memory" or "cpu".
    """
    membership = root / "proc/self/cgroup"
    if not membership.exists():
        return
    for line in membership.read_text().splitlines():
        _, controllers, path = line.split(":", 2)
        inner = PurePosixPath(path.lstrip("/"))
        for level in (inner, *inner.parents):
            if not controllers:
                yield _Group(root / "sys/fs/cgroup" / level, 2)
            elif controller in controllers.split(","):
                yield _Group(root / "sys/fs/cgroup" / controller / level, 1)


M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3
KEPT_BYTES = 1 << 28
"""Larger blocks (weights, the KV pool) still come from the system, and go back to it."""


def keep_freed_memory() -> bool:
    """Let the C library's heap keep what a step frees for the next step, in the whole process.

    Hidden states of a large chunk are blocks of many megabytes. glibc returns them to the system at once and gets them
    anew for every layer, page by page, which takes a fifth of the step.

    Returns:
        False if the C library has no such setting.
    """
    library = ctypes.CDLL(None)
    if not hasattr(library, "mallopt"):
        return False
    return bool(library.mallopt(M_MMAP_THRESHOLD, KEPT_BYTES) and library.mallopt(M_TRIM_THRESHOLD, 2 * KEPT_BYTES))

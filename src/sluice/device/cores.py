"""How many processor cores this process may keep busy."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable
from pathlib import Path

from sluice.device.cgroups import ROOT, Group, groups


def usable_cores() -> int:
    """Physical cores that this process may use, at least 1: of the processors it may run on, those that are halves of
    one core counted once, and no more than its control groups have time for."""
    cores = physical_cores(usable_processors())
    quota = time_quota()
    return cores if quota is None else max(1, min(cores, int(quota)))


def usable_processors() -> frozenset[int]:
    """The processors, hardware threads, that this process may run on: what is left by its affinity and cpuset."""
    if sys.platform == "linux":
        return frozenset(os.sched_getaffinity(0))
    return frozenset(range(os.cpu_count() or 1))


def physical_cores(processors: Iterable[int], root: Path = ROOT) -> int:
    """The number of cores that these processors belong to; a processor of an unknown core is taken for one.

    Args:
        root: where /sys is found.
    """
    return len({_core_of(processor, root) for processor in processors})


def _core_of(processor: int, root: Path) -> tuple[str, ...]:
    topology = root / f"sys/devices/system/cpu/cpu{processor}/topology"
    files = topology / "physical_package_id", topology / "core_id"
    if not all(file.exists() for file in files):
        return (str(processor),)
    return tuple(file.read_text().strip() for file in files)


def time_quota(root: Path = ROOT) -> float | None:
    """How many processors' time the control groups of this process allow it; None if they set no limit."""
    found = [quota for group in groups("cpu", root) if (quota := _quota(group)) is not None]
    return min(found, default=None)


def _quota(group: Group) -> float | None:
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

"""What else a number depends on: versions and the machine that measured. No names of hosts or people."""

from __future__ import annotations

import os
import platform
from collections.abc import Iterable
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

IN_PROCESS_PACKAGES = ("torch", "numpy")


def versions(packages: Iterable[str] = ()) -> dict[str, str]:
    """Of Python, Sluice and these packages, where they are installed."""
    found = {"python": platform.python_version()}
    for package in ("sluice", *packages):
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            continue
    return found


def machine() -> dict[str, Any]:
    """Processor, cores, memory, system, and how busy it was; what cannot be found out is None."""
    return {
        "system": platform.system(),
        "release": platform.release(),
        "architecture": platform.machine(),
        "processor": _first_field(Path("/proc/cpuinfo"), "model name") or platform.processor() or None,
        "cores": os.cpu_count(),
        "usable_cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else None,
        "memory": _first_field(Path("/proc/meminfo"), "MemTotal"),
        "load_average": [round(load, 2) for load in os.getloadavg()] if hasattr(os, "getloadavg") else None,
    }


def _first_field(path: Path, name: str) -> str | None:
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except OSError:
        return None
    return next((line.partition(":")[2].strip() for line in lines if line.startswith(name)), None)

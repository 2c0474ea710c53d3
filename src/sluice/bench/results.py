"""The result of a measurement, the JSON file that holds it, and the versions and the machine that it names."""

from __future__ import annotations

import os
import platform
import re
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.metadata import Distribution, distributions
from pathlib import Path
from typing import Any

import msgspec

from sluice.bench import BenchError
from sluice.bench.records import Run
from sluice.version import VERSION

FORMAT = "sluice-bench-1"
IN_PROCESS_PACKAGES = ("torch", "numpy")
"""Packages whose versions matter when the engine runs in this process."""


@dataclass(frozen=True, slots=True)
class BenchResult:
    """The content of a result file."""

    format: str
    settings: dict[str, dict[str, Any]]
    """The resolved options by group. The API key is left out."""
    target: dict[str, Any]
    """What was measured."""
    versions: dict[str, str]
    machine: dict[str, Any]
    runs: tuple[Run, ...]
    summaries: list[dict[str, Any]] = field(default_factory=list)
    """`metrics.summarize` of each run, for other programs. Sluice computes them again."""


def served(target: Mapping[str, Any]) -> str:
    """Return the model's name, and the engine's if it is a peer of `benchmarks/peers`."""
    peer = target.get("peer")
    return f"{target['model']} by {peer['name']}" if isinstance(peer, dict) else str(target["model"])


def write_result(result: BenchResult, path: Path) -> None:
    """
    Raises:
        BenchError: the file cannot be written.
    """
    write_file(path, msgspec.json.encode(result) + b"\n")


def write_file(path: Path, content: bytes) -> None:
    """
    Raises:
        BenchError: the file cannot be written.
    """
    try:
        path.write_bytes(content)
    except OSError as error:
        raise BenchError(f"cannot write {path}: {error.strerror or error}") from error


def read_result(path: Path) -> BenchResult:
    """
    Raises:
        BenchError: the file cannot be read, or holds no result of this format.
    """
    try:
        result = msgspec.json.decode(path.read_bytes(), type=BenchResult)
    except OSError as error:
        raise BenchError(f"cannot read {path}: {error.strerror or error}") from error
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise BenchError(f"{path} is not a result of sluice bench --json: {error}") from error
    if result.format != FORMAT:
        raise BenchError(f"{path} has the format {result.format!r}; this version reads {FORMAT!r}")
    if not result.runs:
        raise BenchError(f"{path} holds no run")
    return result


def versions(packages: Iterable[str] = ()) -> dict[str, str]:
    """Return the versions of Python, Sluice and these packages, where they are installed."""
    return {"python": platform.python_version(), "sluice": VERSION, **installed_versions(packages)}


def installed_versions(packages: Iterable[str], path: Sequence[str] | None = None) -> dict[str, str]:
    """Return the versions of these packages, where they are installed.

    torch's version names its build (`2.13.0+cpu`, `2.13.0+cu130`), as `torch.__version__` does.

    Args:
        path: the folders to look in: by default those of this interpreter.
    """
    search = sys.path if path is None else path
    found = {name: next(iter(distributions(name=name, path=list(search))), None) for name in packages}
    return {name: _version(name, package) for name, package in found.items() if package is not None}


def _version(name: str, package: Distribution) -> str:
    """Return the version of a package.

    The metadata of torch's wheels on PyPI lack the build, and importing torch takes seconds: its `version.py` is read.
    """
    if name == "torch":
        try:
            text = Path(str(package.locate_file("torch/version.py"))).read_text(encoding="utf-8")
        except OSError:
            text = ""  # an editable installation keeps its sources elsewhere
        if (stated := re.search(r"^__version__ = ['\"](.+)['\"]$", text, re.MULTILINE)) is not None:
            return stated[1]
    return package.version


def machine() -> dict[str, Any]:
    """Return processor, cores, memory, system and load; None for what is unknown. No names of hosts or people."""
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

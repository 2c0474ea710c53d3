"""Writes figures to a file, with the command, the versions and the machine they depend on."""

from __future__ import annotations

import json
import shlex
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from sluice.bench.results import machine, versions

FRONT = ("uvicorn", "h11", "starlette", "msgspec", "pyzmq")
"""Packages that the server's speed depends on."""


def show(figures: Mapping[str, Any], path: Path | None) -> None:
    """Print the figures of this run, and write them to a file if a path is given."""
    record = {
        "command": shlex.join(["python", *sys.argv]),
        "versions": versions(FRONT),
        "machine": machine(),
    }
    text = json.dumps(record | dict(figures), indent=2)
    print(text)
    if path is not None:
        path.write_text(text + "\n", encoding="utf-8")

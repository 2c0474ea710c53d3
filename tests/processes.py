"""Waiting for processes without sleeping."""

from __future__ import annotations

import os
import select
from pathlib import Path


def ends(pid: int, seconds: float) -> bool:
    """Whether a process, of whoever, ends within this time."""
    try:
        handle = os.pidfd_open(pid)
    except ProcessLookupError:
        return True
    try:
        return bool(select.select([handle], [], [], seconds)[0])
    finally:
        os.close(handle)


def children(pid: int) -> list[int]:
    """The processes that a process started and that still run."""
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]

"""Waiting for processes without sleeping."""

from __future__ import annotations

import os
import select
import socket
from pathlib import Path


def ends(pid: int, seconds: float) -> bool:
    """Return whether a process ends within this time. It need not be a child."""
    try:
        handle = os.pidfd_open(pid)
    except ProcessLookupError:
        return True
    try:
        return bool(select.select([handle], [], [], seconds)[0])
    finally:
        os.close(handle)


def children(pid: int) -> list[int]:
    """Return the children of a process that still run."""
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port: int = listener.getsockname()[1]
        return port

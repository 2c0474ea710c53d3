"""Waiting for processes without sleeping."""

from __future__ import annotations

import os
import select
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
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


@contextmanager
def served_at(port: int, *options: str) -> Iterator[str]:
    """Start a server of the bundled model, and yield its URL once it is ready."""
    command = [sys.executable, "-m", "sluice", "serve", "--port", str(port), *options]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as process:
        assert process.stdout is not None
        try:
            assert any(line.strip().startswith("curl") for line in process.stdout), "the server ended"
            yield f"http://127.0.0.1:{port}"
        finally:
            process.terminate()

"""FleetProcess: `sluice fleet` as a child process on a cluster of its own, and the pids of its replicas. Linux only."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from any_checkpoint import any_checkpoint

REPLICA, PREFILL = "ray::ServeReplica:sluice:replica", "ray::ServeReplica:sluice:prefill"
"""What the processes of replicas call themselves."""
CURL = "  curl "
"""What the last line begins with that a server prints when it serves."""
START_SECONDS, STOP_SECONDS = 180.0, 60.0


class FleetProcess:
    """A fleet that serves.

    Args:
        process: the command, in a session of its own.
    """

    def __init__(self, process: subprocess.Popen[str], url: str) -> None:
        self.process = process
        self.url = url

    def replicas(self, deployment: str = REPLICA) -> list[int]:
        """Return the processes of the replicas that have begun, oldest first."""
        return replicas_below(self.process.pid, deployment)

    def kill_replica(self, place: int = 0, deployment: str = REPLICA) -> int:
        """Kill a replica and its engine, as a machine that fails would. Returns its pid."""
        pid = self.replicas(deployment)[place]
        family = [pid, *descendants(pid)]
        for each in family:
            with_signal(each, signal.SIGKILL)
        return pid


@contextmanager
def fleet(*options: str) -> Iterator[FleetProcess]:
    """Run `sluice fleet` with a random model and options."""
    port = free_port()
    command = [sys.executable, "-m", "sluice", "fleet", str(any_checkpoint()), "--port", str(port), *options]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, start_new_session=True) as process:
        try:
            wait_for_line(process, CURL)
            yield FleetProcess(process, f"http://127.0.0.1:{port}")
        finally:
            family = descendants(process.pid)
            with_signal(process.pid, signal.SIGTERM)
            try:
                process.wait(STOP_SECONDS)
            except subprocess.TimeoutExpired:
                process.kill()
            for pid in family:  # what a cluster that was cut off leaves behind
                with_signal(pid, signal.SIGKILL)


def wait_for_line(process: subprocess.Popen[str], words: str) -> None:
    """Read what a command prints until a line that holds some words.

    Raises:
        RuntimeError: it ended before.
    """
    assert process.stdout is not None
    for line in process.stdout:
        if words in line:
            return
    raise RuntimeError(f"it ended with status {process.wait()}")


def run_command(options: Sequence[str], seconds: float) -> subprocess.CompletedProcess[str]:
    """Run `sluice fleet` to its end."""
    command = [sys.executable, "-m", "sluice", "fleet", *options]
    return subprocess.run(command, capture_output=True, text=True, timeout=seconds, check=False)


def replicas_below(pid: int, deployment: str = REPLICA) -> list[int]:
    """Return the processes of the replicas below a process, oldest first."""
    return sorted(each for each in descendants(pid) if command_of(each).startswith(deployment))


def descendants(pid: int) -> list[int]:
    """Return all processes below one."""
    found: list[int] = []
    for task in Path(f"/proc/{pid}/task").glob("*/children"):
        try:
            children = [int(each) for each in task.read_text().split()]
        except OSError:
            continue
        for child in children:
            found += [child, *descendants(child)]
    return found


def command_of(pid: int) -> str:
    """Return the command line of a process, or what it calls itself; nothing if it has ended."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace").strip()
    except OSError:
        return ""


def with_signal(pid: int, number: signal.Signals) -> None:
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        return


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port: int = listener.getsockname()[1]
        return port

"""What Linux knows of a process: its descendants, descriptors and memory."""

from __future__ import annotations

import os
import resource
from pathlib import Path
from typing import NamedTuple

MIB = 1 << 20


class Process(NamedTuple):
    """A process, distinct from later ones with the same id."""

    pid: int
    started: str
    """Its start, in ticks of the system."""
    command: tuple[str, ...]

    @property
    def is_engine(self) -> bool:
        return "sluice.process.engine_process" in self.command

    @property
    def socket_folder(self) -> Path:
        """The folder of an engine's sockets."""
        return Path(self.command[-1])

    def is_alive(self) -> bool:
        stat = _stat(self.pid)
        return stat is not None and stat[19] == self.started and stat[0] != "Z"


def _stat(pid: int) -> list[str] | None:
    """Return the fields of /proc/PID/stat from the third on, or None without such a process."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return None


def children_of(pid: int) -> list[Process]:
    """Return the processes that a process has started and that run, none if it has ended."""
    found = []
    try:
        pids = [int(child) for thread in Path(f"/proc/{pid}/task").iterdir() for child in _children(thread)]
    except (FileNotFoundError, ProcessLookupError):
        return []
    for child in pids:
        stat = _stat(child)
        try:
            command = Path(f"/proc/{child}/cmdline").read_bytes().decode().split("\0")[:-1]
        except (FileNotFoundError, ProcessLookupError):
            continue
        if stat is not None and stat[0] != "Z" and command:  # one that is ending has no command any more
            found.append(Process(child, stat[19], tuple(command)))
    return found


def _children(thread: Path) -> list[str]:
    try:
        return (thread / "children").read_text().split()
    except (FileNotFoundError, ProcessLookupError):
        return []


def descriptors(pid: int) -> dict[int, str]:
    """Return the open descriptors of a process and what they are; none if it has ended."""
    found = {}
    try:
        for entry in Path(f"/proc/{pid}/fd").iterdir():
            try:
                found[int(entry.name)] = os.readlink(entry)
            except FileNotFoundError:
                continue
    except (FileNotFoundError, ProcessLookupError):
        return {}
    return found


def resident_mib(pid: int) -> float:
    """Return the resident memory of a process."""
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * resource.getpagesize() / MIB


def address_space(pid: int) -> int:
    """Return the bytes of a process's address space."""
    return int(Path(f"/proc/{pid}/statm").read_text().split()[0]) * resource.getpagesize()


def set_soft_limit(pid: int, which: int, limit: int | None) -> None:
    """Set a soft limit of a process that may have ended; None lifts it as far as the hard limit allows."""
    try:
        _, hard = resource.prlimit(pid, which)
        resource.prlimit(pid, which, (hard if limit is None else limit, hard))
    except ProcessLookupError:
        return

"""What a process and its descendants have done, as Linux counts it: the evidence of work that gives no sign of life."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

TICKS_PER_SECOND = os.sysconf("SC_CLK_TCK")
BUSY_SHARE = 0.1
"""Share of a time from which on a process computes in it, or waits for a processor. One whose threads all sleep does
neither."""


class Activity(NamedTuple):
    """Counts since the start of a process."""

    cpu_seconds: float
    """Time on processors."""
    io: int
    """A number that grows whenever files are read or written, memory-mapped ones included."""
    queued_seconds: float = 0.0
    """Time for which the process's main thread could run and waited for a processor; 0 if the kernel counts none."""

    def computes_since(self, earlier: Activity, seconds: float) -> bool:
        """Return whether it computed in the `seconds` since an earlier count."""
        return self.cpu_seconds - earlier.cpu_seconds >= BUSY_SHARE * seconds

    def queues_since(self, earlier: Activity, seconds: float) -> bool:
        """Return whether its main thread waited for a processor in the `seconds` since an earlier count."""
        return self.queued_seconds - earlier.queued_seconds >= BUSY_SHARE * seconds


def activity_of(pid: int) -> Activity | None:
    """Return the activity of a process and its descendants; None if the system does not say or the process ended."""
    cpu_ticks = io = 0
    try:
        for each in (pid, *_descendants(pid)):
            folder = Path("/proc", str(each))
            fields = (folder / "stat").read_text().rpartition(")")[2].split()
            major_faults, user, system = (int(fields[index]) for index in (9, 11, 12))
            cpu_ticks += user + system
            io += major_faults + sum(int(count) for count in (folder / "io").read_text().split()[1::2])
    except OSError:
        return None
    return Activity(cpu_ticks / TICKS_PER_SECOND, io, queued_seconds(Path("/proc", str(pid))))


def queued_seconds(task: Path) -> float:
    """Return the seconds for which a thread could run and waited for a processor; 0 if the kernel counts none.

    Args:
        task: its folder in /proc. That of a process is its main thread's.
    """
    try:
        return int((task / "schedstat").read_text().split()[1]) / 1e9
    except (OSError, ValueError, IndexError):
        return 0.0


def _descendants(pid: int) -> Iterator[int]:
    for thread in Path("/proc", str(pid), "task").iterdir():
        with suppress(FileNotFoundError):  # the thread ended just now
            for child in map(int, (thread / "children").read_text().split()):
                yield child
                yield from _descendants(child)

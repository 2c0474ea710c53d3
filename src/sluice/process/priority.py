"""The engine's share of the processors beside the server's."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

CPU_ENGINE_NICE = 5
"""Niceness of an engine that computes on the processors: a third of the server's share where both want one."""

LEAST = 19
"""The niceness of the lowest priority."""


def be_nice() -> None:
    """Let the server go first where both processes want a processor.

    The threads of an engine that computes on the processors take all of them in every step. The server needs little
    time, but needs it soon: connections wait for it, health checks too. What it leaves, the engine uses.
    """
    tasks = Path("/proc/self/task")
    if not tasks.is_dir():
        os.nice(CPU_ENGINE_NICE)
        return
    for task in tasks.iterdir():  # on Linux niceness is a thread's
        thread = int(task.name)
        with suppress(ProcessLookupError):
            os.setpriority(os.PRIO_PROCESS, thread, _nicer(os.getpriority(os.PRIO_PROCESS, thread)))
    group = Path("/proc/self/autogroup")
    with suppress(OSError):  # where the kernel groups processes by session, that of the group counts
        group.write_text(str(_nicer(int(group.read_text().split()[-1]))))


def _nicer(niceness: int) -> int:
    return min(niceness + CPU_ENGINE_NICE, LEAST)

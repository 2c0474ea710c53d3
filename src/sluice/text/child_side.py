"""What a process of `child_process` does: it answers frames within limits of its time and memory, set by the kernel."""

from __future__ import annotations

import os
import resource
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO

from sluice.text.child_process import OUT_OF_MEMORY
from sluice.types.framing import read_frame, write_frame


def pipes() -> tuple[BinaryIO, BinaryIO]:
    """Return where frames come from and where answers go, open until the process ends."""
    return open(0, "rb"), open(1, "wb")


def frame(source: BinaryIO) -> bytes:
    """Return the next frame; end the process if there is none."""
    received = read_frame(source.read)
    if received is None:
        sys.exit()
    return received


def send(sink: BinaryIO, answer: bytes) -> None:
    write_frame(sink.write, answer)
    sink.flush()


def limit(memory_mb: int) -> None:
    """Limit the memory of this process to so much more than it has, or to less if the system allows it no more, and let
    `begin_timing` end it."""
    signal.signal(signal.SIGPROF, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGPROF})
    if sys.platform == "linux":
        used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
        most = used + memory_mb * 2**20
        _, allowed = resource.getrlimit(resource.RLIMIT_AS)
        if allowed != resource.RLIM_INFINITY:
            most = min(most, allowed)
        resource.setrlimit(resource.RLIMIT_AS, (most, most))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def begin_timing(seconds: float) -> None:
    """Let the kernel end this process after so much processor time from now."""
    signal.setitimer(signal.ITIMER_PROF, seconds)


def run(main: Callable[[], None]) -> None:
    """Call `main`, and end the process with its own status if the memory does not suffice."""
    try:
        main()
    except MemoryError:
        os._exit(OUT_OF_MEMORY)  # not later: what is left of the memory may be in pieces

"""Starts a process that keeps one processor busy, as another program on the machine does."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

BUSY = "import os, sys; os.sched_setaffinity(0, {int(sys.argv[1])}); print('busy', flush=True)\nwhile True: pass"


@contextmanager
def neighbour(processor: int | None) -> Iterator[None]:
    """Keep this processor busy meanwhile; None does nothing."""
    if processor is None:
        yield
        return
    process = subprocess.Popen([sys.executable, "-c", BUSY, str(processor)], stdout=subprocess.PIPE)
    assert process.stdout is not None
    try:
        process.stdout.readline()
        yield
    finally:
        process.kill()
        process.stdout.close()
        process.wait()

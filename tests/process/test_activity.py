"""What the system counts of a process and its descendants."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

import pytest

from sluice.process.activity import Activity, activity_of

pytestmark = pytest.mark.skipif(not Path("/proc/self/io").exists(), reason="Linux counts it")
PARENT = """
import subprocess, sys
subprocess.run([sys.executable, "-c", "print(flush=True)\\n" + sys.argv[1]])
"""
COMPUTES = "while True: pass"
WRITES = """
import time
with open("/dev/null", "wb", 0) as file:
    while True:
        file.write(b"0")
        time.sleep(0.001)
"""


def grows(code: str, is_more: Callable[[Activity, Activity], bool]) -> None:
    """Wait until the activity of a process whose child runs `code` has grown."""
    command = [sys.executable, "-c", PARENT, code]
    with subprocess.Popen(command, stdout=subprocess.PIPE, start_new_session=True) as process:
        try:
            assert process.stdout is not None
            process.stdout.readline()  # the child runs
            first = activity_of(process.pid)
            assert first is not None
            while (now := activity_of(process.pid)) is None or not is_more(now, first):
                pass
        finally:
            os.killpg(process.pid, signal.SIGKILL)


def test_a_child_that_computes_is_counted() -> None:
    """Kernels are compiled in other processes, for which an engine waits for minutes."""
    grows(COMPUTES, lambda now, first: now.computes_since(first, seconds=2.0))


def test_what_is_written_is_counted() -> None:
    grows(WRITES, lambda now, first: now.io > first.io + 100)


def test_a_wait_for_a_processor_is_counted() -> None:
    """Two processes on one processor take turns."""
    one = min(os.sched_getaffinity(0))
    pin = f"import os; os.sched_setaffinity(0, {{{one}}}); print(flush=True)\n{COMPUTES}"
    with ExitStack() as stack:
        both = [
            stack.enter_context(subprocess.Popen([sys.executable, "-c", pin], stdout=subprocess.PIPE)) for _ in "ab"
        ]
        stack.callback(lambda: [each.kill() for each in both])
        for each in both:
            assert each.stdout is not None
            assert each.stdout.readline()
        first = activity_of(both[0].pid)
        assert first is not None
        while (now := activity_of(both[0].pid)) is None or not now.queues_since(first, seconds=0.5):
            pass


def test_a_process_that_has_ended_has_none() -> None:
    with subprocess.Popen([sys.executable, "-c", ""]) as process:
        process.wait()
    assert activity_of(process.pid) is None


def test_a_process_computes_if_it_uses_a_tenth_of_a_processor() -> None:
    earlier = Activity(5.0, 0)
    assert Activity(5.2, 0).computes_since(earlier, 1.0)
    assert not Activity(5.09, 0).computes_since(earlier, 1.0)

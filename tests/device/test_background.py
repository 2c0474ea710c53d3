"""Calls in the background end with their caller, and never keep a program from ending."""

from __future__ import annotations

import gc
import subprocess
import sys
import threading

import pytest

from page_files import PATIENCE
from sluice.device.background import Background


def test_calls_are_made_in_order_and_tell_what_befell_them() -> None:
    """A loader whose blocks land in each other's slots, or whose thread ends with its first error."""
    made: list[int] = []
    background = Background("test")
    first, failing, last = (
        background.submit(lambda: made.append(1)),
        background.submit(fail),
        background.submit(lambda: made.append(2)),
    )
    assert last.result(PATIENCE) is None
    assert first.done()
    with pytest.raises(OSError, match="broken"):
        failing.result(0)
    assert made == [1, 2]
    background.close(PATIENCE)
    background.close(PATIENCE)
    assert not background._thread.is_alive()


def fail() -> None:
    raise OSError("broken")


def test_closing_waits_for_no_call_that_hangs() -> None:
    """A server that cannot stop because of a disk; calls that are made after all when the disk comes back."""
    hangs, came_back, made = threading.Event(), threading.Event(), threading.Event()

    def hang() -> None:
        hangs.set()
        came_back.wait(PATIENCE)

    background = Background("test")
    background.submit(hang)
    waiting = background.submit(made.set)
    assert hangs.wait(PATIENCE)
    background.close(0.0)
    assert waiting.cancelled()
    came_back.set()
    background._thread.join(PATIENCE)
    assert not background._thread.is_alive()
    assert not made.is_set()


def test_the_thread_ends_with_an_owner_who_forgot_to_close() -> None:
    """A thread, and the pages it reads into, for every model that a notebook loaded."""
    background = Background("test")
    thread = background._thread
    background.submit(lambda: None).result(PATIENCE)
    del background
    gc.collect()
    thread.join(PATIENCE)
    assert not thread.is_alive()


def test_a_call_that_never_ends_does_not_keep_the_program_from_ending() -> None:
    """Threads of an executor are joined when the interpreter ends."""
    code = (
        "import threading; from sluice.device.background import Background\n"
        "never, begun = threading.Event(), threading.Event()\n"
        "background = Background('test')\n"
        "background.submit(lambda: (begun.set(), never.wait()))\n"
        "begun.wait(); print('ends', flush=True)"
    )
    child = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=PATIENCE, check=False)
    assert (child.returncode, child.stdout, child.stderr) == (0, "ends\n", "")

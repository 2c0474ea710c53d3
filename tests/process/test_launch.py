"""A child process and its exit status."""

from __future__ import annotations

import asyncio
import os
import sys
import threading

import pytest

from serving import run
from sluice.process.child import Child


def test_killing_a_process_that_has_just_ended_leaves_its_status(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A kill that reads the status takes it from the thread that waits for it: asyncio then warns of an unknown child
    process, and reports 255."""
    killed, read_status = threading.Event(), os.waitpid

    def read_late(pid: int, options: int) -> tuple[int, int]:
        if threading.current_thread() is not threading.main_thread():
            assert killed.wait(20)
        return read_status(pid, options)

    monkeypatch.setattr(os, "waitpid", read_late)

    async def test() -> None:
        child = Child(await asyncio.create_subprocess_exec(sys.executable, "-c", "raise SystemExit(7)"))
        os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)  # noqa: ASYNC222 - the loop must not see it
        child.kill()
        killed.set()
        assert await child.wait() == child.returncode == 7

    run(test)
    assert caplog.messages == []

"""A child process whose exit status is read by asyncio alone."""

from __future__ import annotations

import asyncio
import os
import signal


class Child:
    """A process that asyncio started, and waits for in a thread of its own."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process
        self.pid = process.pid

    @property
    def stdin(self) -> asyncio.StreamWriter | None:
        return self._process.stdin

    @property
    def returncode(self) -> int | None:
        """The exit status, as `Popen.returncode`; None if the process has not ended."""
        return self._process.returncode

    async def wait(self) -> int:
        return await self._process.wait()

    def kill(self) -> None:
        """Send SIGKILL.

        `asyncio.subprocess.Process.kill` first asks for the exit status. If the process has ended just now, it takes
        the status from the thread that waits for it, which then warns of an unknown child process and reports 255.

        Raises:
            ProcessLookupError: it has ended.
        """
        os.kill(self.pid, signal.SIGKILL)

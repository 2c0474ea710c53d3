"""The process of an engine, as the operating system sees it."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import threading
from contextlib import suppress
from pathlib import Path

from sluice.process.early import engine_command


async def started(folder: Path) -> Child:
    """Start the process of an engine.

    Raises:
        OSError, RuntimeError: the system does not give what it needs.
    """
    return Child(
        await asyncio.create_subprocess_exec(
            *engine_command(str(folder)),
            stdin=asyncio.subprocess.PIPE,  # its end shows the engine that the server has ended
            stdout=sys.stderr.fileno(),
            start_new_session=True,  # Ctrl-C in a terminal reaches only the server
        )
    )


class EarlyChild:
    """A process that was started before there was an event loop. A thread waits for it."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self._process = process
        self.pid = process.pid

    @property
    def returncode(self) -> int | None:
        return self._process.returncode

    async def wait(self) -> int:
        loop = asyncio.get_running_loop()
        ended: asyncio.Future[int] = loop.create_future()

        def tell(status: int) -> None:
            if not ended.done():
                ended.set_result(status)

        def wait() -> None:
            status = self._process.wait()
            with suppress(RuntimeError):  # the loop is closed
                loop.call_soon_threadsafe(tell, status)

        threading.Thread(target=wait, name="wait-for-engine", daemon=True).start()
        return await ended

    def kill(self) -> None:
        """Send SIGKILL, as `Child.kill`."""
        os.kill(self.pid, signal.SIGKILL)

    def close_stdin(self) -> None:
        assert self._process.stdin is not None
        with suppress(OSError):
            self._process.stdin.close()


class Child:
    """A process that asyncio started, and waits for in a thread of its own."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process
        self.pid = process.pid

    @property
    def returncode(self) -> int | None:
        """The exit status, as `Popen.returncode`; None if the process has not ended."""
        return self._process.returncode

    async def wait(self) -> int:
        return await self._process.wait()

    def close_stdin(self) -> None:
        if self._process.stdin is not None:
            self._process.stdin.close()

    def kill(self) -> None:
        """Send SIGKILL.

        `asyncio.subprocess.Process.kill` first asks for the exit status. If the process has ended just now, it takes
        the status from the thread that waits for it, which then warns of an unknown child process and reports 255.

        Raises:
            ProcessLookupError: it has ended.
        """
        os.kill(self.pid, signal.SIGKILL)


AnyChild = Child | EarlyChild

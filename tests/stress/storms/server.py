"""A server of the storm: `sluice serve` with every kind of state that a blow can hit, started as often as it takes."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import sys
import time
from collections import deque
from collections.abc import Collection, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from stress.storms.client import send
from stress.storms.processes import Process, children_of
from stress.storms.requests import MODEL

POOL_TOKENS = 1024
PAGE_BYTES = 96 << 20
RUNNING, QUEUED = 8, 10
"""Requests that run and wait at most. A call of three prompts with three samples each is nine."""
HEARTBEAT = 8.0
"""Seconds after which a stopped engine is replaced; long enough for one that a busy machine does not run."""
OPTIONS = (
    # In float64 the order of sums changes no token, so an answer must be its calm twin whatever ran beside it.
    *("--dtype", "float64", "--threads", "1", "--max-total-tokens", str(POOL_TOKENS), "--page-size", "32"),
    *("--ring-blocks", "4", "--ring-block-tokens", "256", "--kv-disk-bytes", str(PAGE_BYTES)),
    *("--max-running-requests", str(RUNNING), "--max-queued-requests", str(QUEUED), "--schedule-policy", "priority"),
    *("--heartbeat-timeout", f"{HEARTBEAT:g}", "--max-engine-restarts", "100000"),
)
START_SECONDS = 120.0
"""Limit on a start, on a machine that does other work."""
END_SECONDS = 45.0
LOOK_SECONDS = 0.05
KEPT_LINES = 400


class ServerGone(RuntimeError):
    """The server ended, or did not become ready; the message is its last line."""


class StormServer:
    """`sluice serve` over a random model, with a page file, a trace and a temporary folder of its own.

    Args:
        folder: for its files; must exist.
        options: of `sluice serve`, beside those that the storm needs.
        log: file for what the servers log.
    """

    def __init__(self, folder: Path, options: Sequence[str] = (), log: Path | None = None) -> None:
        self.page_file = folder / "pages.kv"
        self.trace = folder / "trace.jsonl"
        self.temporary = folder / "tmp"
        self.port = _free_port()
        self.life = 0
        """Number of starts so far."""
        self.is_ending = False
        """The storm ends it: answers may be cut off."""
        self.is_limited = False
        """Its descriptors are limited: connections may be refused."""
        self.has_tier_trouble = False
        """Its page file was damaged: offloaded requests may end with an error that names it."""
        self._processes: dict[tuple[int, str], Process] = {}
        self.log: deque[str] = deque(maxlen=KEPT_LINES)
        """The last lines that were logged."""
        self._log_file = log
        self._options = (*OPTIONS, *options)
        self._front: asyncio.subprocess.Process | None = None
        self._tasks: list[asyncio.Task[None]] = []

    async def start(self) -> None:
        """Start the server and wait until it is ready.

        Raises:
            ServerGone: it does not become ready.
        """
        self.temporary.mkdir(exist_ok=True)
        files = ("--kv-disk", str(self.page_file), "--trace", str(self.trace))
        self.life += 1
        self._front = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "sluice", "serve", MODEL, "--port", str(self.port), *files, *self._options),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.DEVNULL,
            stderr=asyncio.subprocess.PIPE,  # a file would count against a limit on the size of files
            env={**os.environ, "OMP_NUM_THREADS": "1", "TMPDIR": str(self.temporary), "HF_HUB_OFFLINE": "1"},
        )
        self._tasks = [asyncio.create_task(self._keep_log()), asyncio.create_task(self._watch())]
        await self.until_ready(START_SECONDS)
        self.is_ending = False

    async def until_ready(self, seconds: float) -> None:
        """Wait until the server accepts requests.

        Raises:
            ServerGone: it ended, or is not ready in time.
        """
        until = time.monotonic() + seconds
        while True:
            if not self.is_running:
                raise ServerGone(f"the server ended with status {self._front_process.returncode}: {self.last_line}")
            reply = await send(self.port, "GET", "/ready")
            if reply.status == 200 and self.engine is not None:
                return
            if time.monotonic() > until:
                raise ServerGone(f"not ready after {seconds:g} s: {reply.body.decode() or reply.error}")
            await asyncio.sleep(LOOK_SECONDS)

    async def end(self, number: int) -> int:
        """Send a signal that ends the server, and return its exit status when it has ended.

        Raises:
            ServerGone: it does not end in time; it is killed.
        """
        front, self.is_ending = self._front_process, True
        with suppress(ProcessLookupError):
            front.send_signal(number)
        try:
            return await asyncio.wait_for(front.wait(), END_SECONDS)
        except TimeoutError:
            front.kill()
            await front.wait()
            raise ServerGone(f"did not end within {END_SECONDS:g} s of {signal.Signals(number).name}") from None
        finally:
            for task in self._tasks:
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)

    def kill_all(self) -> None:
        """Kill the server and every process that it has started and that still runs."""
        if self._front is not None and self.is_running:
            self._front.kill()
        for process in self.processes:
            if process.is_alive():
                os.kill(process.pid, signal.SIGKILL)

    @property
    def pid(self) -> int:
        return self._front_process.pid

    @property
    def is_running(self) -> bool:
        return self._front_process.returncode is None

    @property
    def last_line(self) -> str:
        return self.log[-1] if self.log else "nothing was logged"

    @property
    def engine(self) -> Process | None:
        """The engine that runs, or loads; None between two engines."""
        found = [process for process in self._children() if process.is_engine]
        return max(found, key=lambda process: int(process.started), default=None)

    @property
    def processes(self) -> Collection[Process]:
        """All processes that the server has started, in all its lives."""
        return self._processes.values()

    @property
    def engines(self) -> int:
        """Engines that were started so far, in all lives."""
        return sum(process.is_engine for process in self.processes)

    async def info(self) -> dict[str, Any]:
        """Return `/server_info`.

        Raises:
            ServerGone: there is no answer.
        """
        reply = await send(self.port, "GET", "/server_info")
        if reply.status != 200 or not reply.is_complete:
            raise ServerGone(f"/server_info answers {reply.status} {reply.error}")
        content: dict[str, Any] = json.loads(reply.body)
        return content

    @property
    def _front_process(self) -> asyncio.subprocess.Process:
        assert self._front is not None, "the server was not started"
        return self._front

    def _children(self) -> list[Process]:
        """Return the processes that the server has started and that run, and remember them."""
        found = children_of(self.pid)
        # A process has the command of the server until it begins with its own: the last look is the right one.
        self._processes.update({(process.pid, process.started): process for process in found})
        return found

    async def _keep_log(self) -> None:
        stream = self._front_process.stderr
        assert stream is not None
        with open(self._log_file or os.devnull, "ab", buffering=0) as file:  # noqa: ASYNC230 - a log
            while line := await stream.readline():
                file.write(line)
                self.log.append(line.decode(errors="replace").rstrip())

    async def _watch(self) -> None:
        """Find every process that the server starts."""
        while self.is_running:
            self._children()
            await asyncio.sleep(LOOK_SECONDS)


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port: int = free.getsockname()[1]
        return port

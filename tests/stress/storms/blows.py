"""Blows that are struck at a server while clients use it. None of them may lose, repeat or change a token.

Each blow is a function of a `Target`. It returns when the harm is done and, if it is a limit, lifted. The rounds then
wait until the server is ready again and every request that was open has its answer: so no request is in flight when two
engines in a row die, except under the blow that tries just that, and none is ended as the one that kills engines.
"""

from __future__ import annotations

import asyncio
import os
import random
import resource
import shutil
import signal
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass

from stress.storms.load import SLOW, Load
from stress.storms.processes import Process, address_space, descriptors, set_soft_limit
from stress.storms.server import HEARTBEAT, RUNNING, ServerGone, StormServer

LIMITED_SECONDS = 3.0
"""How long a limit holds."""
ENGINE_SECONDS = 180.0
"""Time for a new engine to be started."""
OVERLOAD = 5
"""Times as many calls at once as requests can run."""
FLIPPED_BYTES = 40
SMALLEST_FILE = 4096
"""Bytes of a file beyond which an engine may not write: no page, and no line of the trace, can be stored then."""


@dataclass
class Target:
    """The server that is struck, its clients, and the randomness of the blow."""

    server: StormServer
    load: Load
    clients: int
    draw: random.Random

    async def engine(self) -> Process:
        """Return the engine that runs or loads, as soon as there is one.

        Raises:
            ServerGone: none is started.
        """
        until = time.monotonic() + ENGINE_SECONDS
        while (engine := self.server.engine) is None:
            if time.monotonic() > until or not self.server.is_running:
                raise ServerGone(f"no engine is started: {self.server.last_line}")
            await asyncio.sleep(0.02)
        return engine


@dataclass(frozen=True)
class Blow:
    """One kind of blow."""

    name: str
    strike: Callable[[Target], Awaitable[None]]
    replaces_front: bool = False
    """The server ends and is started again, or has to be because its page file is gone."""


async def _kill(target: Target) -> None:
    await _end_engine(target, signal.SIGKILL)


async def _segv(target: Target) -> None:
    await _end_engine(target, signal.SIGSEGV)


async def _pause(target: Target) -> None:
    """Stop the engine for a moment that is shorter than the heartbeat's timeout."""
    engine = await target.engine()
    _send_signal(engine, signal.SIGSTOP)
    await asyncio.sleep(target.draw.uniform(0.2, HEARTBEAT / 4))
    _send_signal(engine, signal.SIGCONT)


async def _stop(target: Target) -> None:
    """Stop the engine until the server kills it."""
    engine = await target.engine()
    _send_signal(engine, signal.SIGSTOP)
    await until_gone(engine)


async def _kill_while_loading(target: Target) -> None:
    """Kill the engine, and the next one before it is ready."""
    await _end_engine(target, signal.SIGKILL)
    successor = await target.engine()
    await asyncio.sleep(target.draw.uniform(0.0, 1.5))
    _send_signal(successor, signal.SIGKILL)
    await until_gone(successor)


async def _limit_memory(target: Target) -> None:
    """Let the allocations of a new engine fail, before its buffers have their sizes: its memory may not grow."""
    await _end_engine(target, signal.SIGKILL)
    await target.server.until_ready(ENGINE_SECONDS)
    engine = await target.engine()
    await _while_limited(engine.pid, resource.RLIMIT_AS, address_space(engine.pid))


async def _limit_engine_descriptors(target: Target) -> None:
    engine = await target.engine()
    await _while_limited(engine.pid, resource.RLIMIT_NOFILE, 1 + max(descriptors(engine.pid), default=0))


async def _limit_front_descriptors(target: Target) -> None:
    """Leave the server a few descriptors, so that clients cannot connect, and kill its engine meanwhile."""
    server, engine = target.server, await target.engine()
    few = len(descriptors(server.pid)) + target.draw.randint(0, 4)
    set_soft_limit(server.pid, resource.RLIMIT_NOFILE, few)
    server.is_limited = True
    try:
        await asyncio.sleep(LIMITED_SECONDS / 3)
        _send_signal(engine, signal.SIGKILL)
        await asyncio.sleep(LIMITED_SECONDS)
    finally:
        set_soft_limit(server.pid, resource.RLIMIT_NOFILE, None)
    await asyncio.sleep(LIMITED_SECONDS / 3)  # connections that were refused in the meantime are tried again
    server.is_limited = False


async def _fill_disk(target: Target) -> None:
    """Let the engine's writes to files fail, and sometimes kill it while they do."""
    engine = await target.engine()
    target.server.has_tier_trouble = True
    set_soft_limit(engine.pid, resource.RLIMIT_FSIZE, SMALLEST_FILE)
    await asyncio.sleep(LIMITED_SECONDS)
    if target.draw.random() < 0.3:
        _send_signal(engine, signal.SIGKILL)
    set_soft_limit(engine.pid, resource.RLIMIT_FSIZE, None)


async def _flip_bytes(target: Target) -> None:
    """Change bytes anywhere in the page file: its header, its index and its records."""
    target.server.has_tier_trouble = True
    with target.server.page_file.open("r+b") as file:
        size = file.seek(0, os.SEEK_END)
        for _ in range(FLIPPED_BYTES):
            at = target.draw.choice([target.draw.randrange(size), target.draw.randrange(SMALLEST_FILE, size)])
            file.seek(at)
            byte = file.read(1)
            file.seek(at)
            file.write(bytes([byte[0] ^ 1 << target.draw.randrange(8)]))


async def _truncate(target: Target) -> None:
    """Cut the page file off and kill the engine: the next one finds no page file."""
    await _without_page_file(
        target, lambda path: os.truncate(path, target.draw.choice([0, 100, os.stat(path).st_size // 2]))
    )


async def _replace_file(target: Target) -> None:
    """Put something else in the page file's place, and kill the engine."""

    def replace(path: os.PathLike[str]) -> None:
        os.remove(path)
        match target.draw.choice(["nothing", "text", "folder", "fifo", "link"]):
            case "text":
                with open(path, "w", encoding="utf-8") as file:
                    file.write("somebody's notes\n" * 1000)
            case "folder":
                os.mkdir(path)
            case "fifo":
                os.mkfifo(path)
            case "link":
                os.symlink("/dev/full", path)

    await _without_page_file(target, replace)


async def _without_page_file(target: Target, harm: Callable[[os.PathLike[str]], None]) -> None:
    """Harm the page file and kill the engine, serve for a while, then end the server and start it with a new file."""
    server = target.server
    server.has_tier_trouble = True
    harm(server.page_file)
    await asyncio.sleep(target.draw.uniform(0.0, 2.0))
    await _end_engine(target, signal.SIGKILL)
    await server.until_ready(ENGINE_SECONDS)
    await target.load.settled()
    await restart(server, signal.SIGTERM, keeps_file=False)


async def _remove_sockets(target: Target) -> None:
    """Remove the folder of the engine's sockets, sometimes that of all temporary files, and kill the engine."""
    engine = await target.engine()
    shutil.rmtree(engine.socket_folder, ignore_errors=True)
    if target.draw.random() < 0.5:
        shutil.rmtree(target.server.temporary, ignore_errors=True)
    await asyncio.sleep(target.draw.uniform(0.0, 1.0))
    _send_signal(engine, signal.SIGKILL)
    await until_gone(engine)
    await target.server.until_ready(ENGINE_SECONDS)
    target.server.temporary.mkdir(exist_ok=True)


async def _kill_front(target: Target) -> None:
    await restart(target.server, signal.SIGKILL)


async def _end_front(target: Target) -> None:
    """End the server in an orderly way, while clients use it, and start it again."""
    await restart(target.server, signal.SIGTERM)


async def restart(server: StormServer, number: int, *, keeps_file: bool = True) -> None:
    """End the server by a signal, see that nothing of it stays, and start it again.

    Args:
        keeps_file: the next server has the same page file.

    Raises:
        ServerGone: it ended otherwise than expected, left something behind, or cannot be started.
    """
    status = await server.end(number)
    if status != (0 if number == signal.SIGTERM else -number):
        raise ServerGone(f"{signal.Signals(number).name} ended the server with status {status}: {server.last_line}")
    for process in server.processes:
        await until_gone(process)
    if not keeps_file:
        remove(server.page_file)
        server.has_tier_trouble = False
    await server.start()


def remove(path: os.PathLike[str]) -> None:
    """Remove a file or folder, if it is there."""
    if os.path.isdir(path):
        os.rmdir(path)
    else:
        with suppress(FileNotFoundError):
            os.remove(path)


async def _leave(target: Target) -> None:
    """Let many clients come, and leave in the middle of their answers."""
    await asyncio.gather(*(target.load.burst(1, target.load.leaving()) for _ in range(2 * target.clients)))


async def _read_slowly(target: Target) -> None:
    await target.load.burst(2 * target.clients, SLOW)


async def _overload(target: Target) -> None:
    await target.load.burst(OVERLOAD * RUNNING)


async def _end_engine(target: Target, number: int) -> None:
    """End the engine by a signal. Returns when its process is gone."""
    engine = await target.engine()
    _send_signal(engine, number)
    await until_gone(engine)


def _send_signal(process: Process, number: int) -> None:
    if process.is_alive():
        os.kill(process.pid, number)


async def _while_limited(pid: int, which: int, limit: int) -> None:
    set_soft_limit(pid, which, limit)
    await asyncio.sleep(LIMITED_SECONDS)
    set_soft_limit(pid, which, None)


async def until_gone(process: Process) -> None:
    """Wait for a process's end.

    Raises:
        ServerGone: it still runs after a time in which the server should have noticed.
    """
    until = time.monotonic() + ENGINE_SECONDS
    while process.is_alive():
        if time.monotonic() > until:
            raise ServerGone(f"process {process.pid} still runs: {' '.join(process.command)}")
        await asyncio.sleep(0.02)


BLOWS: Sequence[Blow] = (
    Blow("engine: KILL", _kill),
    Blow("engine: SEGV", _segv),
    Blow("engine: STOP, then CONT", _pause),
    Blow("engine: STOP", _stop),
    Blow("engine: KILL twice, while loading", _kill_while_loading),
    Blow("engine: memory limit", _limit_memory),
    Blow("engine: descriptor limit", _limit_engine_descriptors),
    Blow("front: descriptor limit, and engine: KILL", _limit_front_descriptors),
    Blow("disk full", _fill_disk),
    Blow("page file: bytes flipped", _flip_bytes),
    Blow("page file: cut off", _truncate, replaces_front=True),
    Blow("page file: replaced", _replace_file, replaces_front=True),
    Blow("temporary folder removed", _remove_sockets),
    Blow("front: KILL", _kill_front, replaces_front=True),
    Blow("front: TERM", _end_front, replaces_front=True),
    Blow("clients: leave", _leave),
    Blow("clients: read slowly", _read_slowly),
    Blow("clients: overload", _overload),
)

"""Streams of a fleet that is updated under them: each must be that of the same request undisturbed."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from stress.fleets.kills import OPTIONS, compared
from stress.fleets.process import START_SECONDS, free_port, replicas_below, run_command, wait_for_line
from stress.fleets.streams import Stream, bodies, play

SHORT_TOKENS = 32
"""Of each request that arrives while the update goes on."""


@contextmanager
def cluster() -> Iterator[tuple[str, int]]:
    """Run a cluster of this machine with `ray start`. Yields its address, and the pid above its processes."""
    ray, port = str(Path(sys.executable).with_name("ray")), free_port()
    os.environ["RAY_AUTH_MODE"] = "token"  # for those that connect, too: its ports are open on all interfaces
    subprocess.run([ray, "get-auth-token", "--generate"], check=True, stdout=subprocess.DEVNULL)
    with tempfile.TemporaryDirectory(prefix="ray") as folder:
        start = ["start", "--head", "--block", "--port", str(port), "--temp-dir", folder]
        start += ["--include-dashboard", "false", "--disable-usage-stats"]
        unbuffered = {**os.environ, "PYTHONUNBUFFERED": "1"}  # it says that it runs, and then nothing more
        with subprocess.Popen([ray, *start], stdout=subprocess.PIPE, text=True, env=unbuffered) as process:
            try:
                wait_for_line(process, "Ray runtime started")
                yield f"127.0.0.1:{port}", process.pid
            finally:
                process.terminate()


def deploy(address: str, port: int, *options: str) -> None:
    """Start a fleet on a cluster, or update it.

    Raises:
        RuntimeError: the command failed.
    """
    command = ["--address", address, "--port", str(port), *OPTIONS, *options]
    if (ended := run_command(command, START_SECONDS)).returncode:
        raise RuntimeError(ended.stderr)


async def survive(streams: int, tokens: int) -> dict[str, Any]:
    """Update a fleet under streams, and return what is wrong with them: nothing, if no token was lost, repeated or
    changed. As long as the update goes on, more and more short requests are sent."""
    requests, short = bodies(streams, tokens), bodies(streams, SHORT_TOKENS)
    with cluster() as (address, above):
        port = free_port()
        url = f"http://127.0.0.1:{port}"
        deploy(address, port)
        before = set(replicas_below(above))
        undisturbed, undisturbed_short = await play(url, requests), await play(url, short)
        updating = asyncio.create_task(asyncio.to_thread(deploy, address, port, "--max-running-requests", "48"))
        playing = asyncio.create_task(play(url, requests))
        waves = list[list[Stream]]()
        while not (updating.done() and playing.done()):
            waves.append(await play(url, short))
        await updating
        found = compared(undisturbed, await playing, tokens)
        for wave in waves:
            found += compared(undisturbed_short, wave, SHORT_TOKENS)
        left = before & set(replicas_below(above))
    found += [f"{len(left)} replicas were not replaced"] if left else []
    return {"problems": found, "streams": 2 * streams, "short_requests": streams * len(waves)}

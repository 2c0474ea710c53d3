"""What proxy, ingress and handle take of each request and of each token, against a single server."""

from __future__ import annotations

import asyncio
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise
from typing import Any

from benchmarks.fleets.process import CURL, command_of, descendants, fleet, free_port, wait_for_line
from benchmarks.fleets.streams import bodies, client_of, play, play_one
from benchmarks.shadow_server import cpu_seconds

ENGINE = ("--threads", "1", "--max-total-tokens", "16384")
ROUNDS = 3
PARTS = {
    "ray::ProxyActor": "proxy",
    "ray::ServeReplica:sluice:ingress": "ingress",
    "ray::ServeReplica:sluice:replica": "replica",
    "sluice.process.engine_process": "engine",
    "-m sluice serve": "server",
}
"""Part of a command -> what it is."""
OTHER = "others"


@contextmanager
def single_server() -> Iterator[tuple[str, int]]:
    """Run `sluice serve`, and yield its URL and its pid."""
    port = free_port()
    command = [sys.executable, "-m", "sluice", "serve", "--port", str(port), "--no-page", *ENGINE]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        wait_for_line(process, CURL)
        yield f"http://127.0.0.1:{port}", process.pid
        process.terminate()


def measure(requests: int, tokens: int, streams: int) -> dict[str, Any]:
    """Return the medians of both, measured in turn, while both run."""
    found: dict[str, list[dict[str, float]]] = {"server": [], "fleet": []}
    with single_server() as server, fleet("--replicas", "1", *ENGINE) as world:
        both = {"server": server, "fleet": (world.url, world.process.pid)}
        for url, _ in both.values():
            asyncio.run(play(url, bodies(4, 20)))  # warm
        for _ in range(ROUNDS):
            for name, (url, pid) in both.items():
                found[name].append(asyncio.run(one_round(url, pid, requests, tokens, streams)))
    medians = {
        name: {key: statistics.median(each[key] for each in rounds) for key in rounds[0]}
        for name, rounds in found.items()
    }
    added = {key: medians["fleet"][key] - medians["server"][key] for key in medians["server"]}
    return {"rounds": found, "median": medians, "added": added}


async def one_round(url: str, pid: int, requests: int, tokens: int, streams: int) -> dict[str, float]:
    """Measure requests of one token, one after the other; one stream; and several streams at once.

    Args:
        pid: of the process above all that serve.
    """
    now = time.perf_counter
    async with client_of(url) as http:
        times, body = [], bodies(1, 1)[0]
        for _ in range(requests):
            began = now()
            await play_one(http, body)
            times.append(now() - began)
        alone = await play_one(http, bodies(1, tokens)[0])
        began, busy = now(), family_seconds(pid)
        await asyncio.gather(*(play_one(http, each) for each in bodies(streams, tokens)))
        seconds, after = now() - began, family_seconds(pid)
    spent = {name: 1e3 * (after[name] - busy.get(name, 0.0)) / (streams * tokens) for name in after}
    return {
        "request_ms": statistics.median(times) * 1e3,
        "itl_ms": statistics.median(after - before for before, after in pairwise(alone.moments)) * 1e3,
        "stream_tokens_per_s": (len(alone.moments) - 1) / (alone.moments[-1] - alone.moments[0]),
        "streams_tokens_per_s": streams * tokens / seconds,
        "streams_cpu_ms_per_token": sum(spent.values()),
        **{f"streams_cpu_ms_per_token of {name}": value for name, value in sorted(spent.items())},
    }


def family_seconds(pid: int) -> dict[str, float]:
    """Return the processor time of a process and of those below it, by what they do."""
    found: dict[str, float] = dict.fromkeys((*PARTS.values(), OTHER), 0.0)
    for each in (pid, *descendants(pid)):
        command = command_of(each)
        name = next((name for part, name in PARTS.items() if part in command), OTHER)
        found[name] += cpu_seconds(each)
    return found

"""A burst of requests, and how many replicas a fleet has before, during and after it."""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx

from benchmarks.fleets.process import fleet
from benchmarks.fleets.streams import bodies, play

OPTIONS = (
    *("--replicas", "1", "--max-replicas", "3", "--router", "expected-ttft", "--max-total-tokens", "16384"),
    *("--scale-queued-tokens", "500", "--scale-down-seconds", "30"),
)
LOOK_SECONDS = 1.0
SHOWN = {"replicas": "sluice:replicas", "running": "vllm:num_requests_running", "waiting": "vllm:num_requests_waiting"}


def measure(url: str | None, calm: float, burst: float, after: float, streams: int) -> dict[str, Any]:
    """Send bursts for a while to a fleet, and return what its metrics showed each second.

    Args:
        url: of a fleet that runs; None: one is started.
        calm, burst, after: seconds before, of, and behind the burst.
    """
    if url is not None:
        return asyncio.run(_measure(url, calm, burst, after, streams))
    with fleet(*OPTIONS) as world:
        return asyncio.run(_measure(world.url, calm, burst, after, streams))


async def _measure(url: str, calm: float, burst: float, after: float, streams: int) -> dict[str, Any]:
    began = time.monotonic()
    async with looking(url, began) as seen:
        await asyncio.sleep(calm)
        start = time.monotonic() - began
        failed = 0
        while time.monotonic() - began < start + burst:
            answers = await play(url, fresh(bodies(streams, 64), round(time.monotonic() * 1000)))
            failed += sum(answer.problem(64) is not None for answer in answers)
        end = time.monotonic() - began
        await asyncio.sleep(after)
    return {"options": OPTIONS, "burst": [start, end], "streams": streams, "failed": failed, "seconds": seen}


@asynccontextmanager
async def looking(url: str, began: float) -> AsyncIterator[list[dict[str, float]]]:
    """Read the metrics of a fleet each second."""
    seen: list[dict[str, float]] = []

    async def look() -> None:
        async with httpx.AsyncClient(base_url=url, timeout=30) as http:
            while True:
                page = (await http.get("/metrics")).text
                seen.append({"at": time.monotonic() - began, **numbers_of(page)})
                await asyncio.sleep(LOOK_SECONDS)

    task = asyncio.create_task(look())
    try:
        yield seen
    finally:
        task.cancel()
        await asyncio.wait({task})


def numbers_of(page: str) -> dict[str, float]:
    """Return the numbers of a page of metrics that are shown."""
    found = {name: re.search(rf"^{metric}{{.*}} (\S+)", page, re.MULTILINE) for name, metric in SHOWN.items()}
    return {name: float(match[1]) for name, match in found.items() if match is not None}


def fresh(requests: list[dict[str, Any]], number: int) -> list[dict[str, Any]]:
    """Return requests of which no prefix is cached."""
    return [body | {"prompt": f"{number} {place} {body['prompt']}"} for place, body in enumerate(requests)]

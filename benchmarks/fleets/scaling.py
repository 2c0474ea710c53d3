"""A burst of requests, and how many replicas a fleet has before, during and after it."""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import AsyncIterator, Sequence
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


def svg(seconds: Sequence[dict[str, float]], burst: Sequence[float]) -> str:
    """Draw the number of replicas, and of requests that wait or run, over time."""
    width, height, last = 640, 200, seconds[-1]["at"]
    most = max(max(each["running"] + each["waiting"] for each in seconds), 1.0)

    def line(values: list[tuple[float, float]], color: str) -> str:
        points = " ".join(
            f"{40 + at / last * (width - 60):.1f},{height - 30 - 150 * share:.1f}" for at, share in values
        )
        return f'<polyline fill="none" stroke="{color}" stroke-width="2" points="{points}"/>'

    start, end = (40 + moment / last * (width - 60) for moment in burst)
    replicas = line([(each["at"], each["replicas"] / 3) for each in seconds], "#0b6e4f")
    requests = line([(each["at"], (each["running"] + each["waiting"]) / most) for each in seconds], "#c8963e")
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}"'
        f' font-family="sans-serif" font-size="11">'
        f'<rect x="{start:.1f}" y="20" width="{end - start:.1f}" height="150" fill="#eef2f5"/>{requests}{replicas}'
        f'<text x="40" y="14" fill="#0b6e4f">replicas (the top is 3)</text>'
        f'<text x="220" y="14" fill="#c8963e">requests running and waiting (the top is {most:.0f})</text>'
        f'<text x="{start:.1f}" y="{height - 12}">burst</text>'
        f'<text x="{width - 70}" y="{height - 12}">{last:.0f} s</text></svg>\n'
    )

"""What must be back when no client is there: pages, requests, descriptors, processes, socket folders, memory."""

from __future__ import annotations

import asyncio
import statistics
import time
from collections.abc import Sequence
from typing import Any, NamedTuple

from stress.storms.processes import descriptors, resident_mib
from stress.storms.server import ServerGone, StormServer

BACK_SECONDS = 20.0
"""Time for everything to be back after the last answer: a client that left is noticed at the next step."""
GROWTH = 0.03
"""Largest share by which the memory of a server, or of engines of equal age, may differ early and late in a storm."""
TOOLS_FOLDERS = ("torchinductor_",)
"""Folders that PyTorch makes in the temporary folder."""


class Rest(NamedTuple):
    """A server at rest."""

    life: int
    front_descriptors: int
    engine_descriptors: int
    front_mib: float
    engine_mib: float


async def at_rest(server: StormServer, baseline: Rest | None) -> tuple[Rest, list[str]]:
    """Wait until everything is back, at most `BACK_SECONDS`. Returns what there is then, and what is not back.

    Args:
        baseline: what the first pause found; None in the first.
    """
    until = time.monotonic() + BACK_SECONDS
    while True:
        rest, missing = await _look(server, baseline)
        if rest is not None and (not missing or time.monotonic() > until):
            return rest, missing
        if time.monotonic() > until:
            raise ServerGone("; ".join(missing))
        await asyncio.sleep(0.1)


async def _look(server: StormServer, baseline: Rest | None) -> tuple[Rest | None, list[str]]:
    engine = server.engine
    if engine is None:
        return None, ["there is no engine"]
    rest = Rest(
        server.life,
        len(descriptors(server.pid)),
        len(descriptors(engine.pid)),
        resident_mib(server.pid),
        resident_mib(engine.pid),
    )
    missing = held(await server.info())
    if baseline is not None:
        missing += [
            f"the {name} has {now} descriptors, and had {then}"
            for name, now, then in (
                ("server", rest.front_descriptors, baseline.front_descriptors),
                ("engine", rest.engine_descriptors, baseline.engine_descriptors),
            )
            if now > then
        ]
    running = [process for process in server.processes if process.is_alive()]
    engines = [process for process in running if process.is_engine]
    if len(engines) > 1 or len(running) > 2:  # the engine, and the process that renders chat templates
        missing.append(f"still running: {[' '.join(process.command) for process in running]}")
    earlier = {process.socket_folder for process in server.processes if process.is_engine} - {engine.socket_folder}
    missing += [f"{folder} is still there" for folder in earlier if folder.exists()]
    return rest, missing


def held(info: dict[str, Any]) -> list[str]:
    """Return what `/server_info` still counts as in use."""
    counts = {name: info[name] for name in ("running", "waiting", "partial", "loading")}
    found = [f"{count} requests are {name}" for name, count in counts.items() if count]
    pages = info["free_pages"] + info["cached_pages"]
    if pages != info["total_pages"]:
        found.append(f"{info['total_pages'] - pages} of {info['total_pages']} pages are held")
    return found


def left_behind(server: StormServer) -> list[str]:
    """Return what there still is of a server that has ended."""
    found = [f"process {process.pid} still runs" for process in server.processes if process.is_alive()]
    folders = {process.socket_folder for process in server.processes if process.is_engine}
    found += [f"{folder} is still there" for folder in folders if folder.exists()]
    kept = (server.page_file.name, server.trace.name, server.temporary.name)
    for folder, expected in ((server.temporary, TOOLS_FOLDERS), (server.temporary.parent, kept)):
        found += [f"{path} is still there" for path in folder.iterdir() if not path.name.startswith(expected)]
    return found


def grown(rests: Sequence[Rest]) -> list[str]:
    """Return which processes take other memory late in the storm than early in it.

    A server is compared with itself at its own first pause after a round: before there was load, no buffer has its
    size. Engines are as old at one pause as at another, and two of them differ by some percent, as their threads happen
    to allocate: the medians of both halves are compared.
    """
    if len(rests) < 2:
        return []
    last, half = rests[-1], len(rests) // 2
    same_life = [rest for rest in rests[1:] if rest.life == last.life]
    pairs = (
        ("server", same_life[0].front_mib, last.front_mib),
        (
            "engine",
            statistics.median(rest.engine_mib for rest in rests[:half]),
            statistics.median(rest.engine_mib for rest in rests[half:]),
        ),
    )
    return [
        f"the {name} takes {now:.1f} MiB, and took {then:.1f}"
        for name, then, now in pairs
        if abs(now - then) > GROWTH * then
    ]

"""Streams of a fleet whose ingress and proxy are killed: each is asked for again from its last event.

Half of them are streams of `/generate`, whose events have the whole text so far.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
from dataclasses import dataclass, field
from typing import Any

import httpx

from stress.fleets.kills import OPTIONS
from stress.fleets.process import FleetProcess, fleet
from stress.fleets.streams import bodies, client_of

INGRESS, PROXY = "ray::ServeReplica:sluice:ingress", "ray::ProxyActor"
PAUSE, PATIENCE = 0.2, 60.0
"""Seconds between two attempts, and those after which a stream is lost."""


@dataclass
class Continued:
    """A stream that is asked for again whenever it is cut."""

    events: list[str] = field(default_factory=list)
    """What its events held, without usage."""
    last: str = ""
    cuts: int = 0
    is_done: bool = False
    error: str = ""


async def survive(streams: int, tokens: int, *, ingresses: int = 1) -> dict[str, Any]:
    """Kill an ingress and then the proxy, each in the middle of all streams. Returns what is wrong, and how many were
    cut."""
    requests = [asked(number, body) for number, body in enumerate(bodies(streams, tokens))]
    problems: list[str] = []
    cut: dict[str, int] = {}
    with fleet(*OPTIONS, "--ingresses", str(ingresses)) as world:
        calm = await play(world.url, requests)
        for victim in (INGRESS, PROXY):
            found = await play(world.url, requests, world, victim)
            cut[victim] = sum(each.cuts > 0 for each in found)
            problems += [
                f"{victim}: stream {number} is not its twin: {one.error or len(one.events)}"
                for number, (one, twin) in enumerate(zip(found, calm, strict=True))
                if one.error or not one.is_done or one.events != twin.events
            ]
    return {"problems": problems, "cut": cut, "streams": streams}


def asked(number: int, body: dict[str, Any]) -> tuple[str, dict[str, Any]]:
    """Return the path and the body of a stream, given those of a completion."""
    options = {"stream_options": {"include_event_ids": True}}
    if number % 4 < 2:  # every other one is greedy
        return "/v1/completions", body | options
    sampling = {"max_new_tokens": body["max_tokens"], "temperature": body["temperature"], "ignore_eos": True}
    sampling["sampling_seed"] = body["seed"]
    return "/generate", {"text": body["prompt"], "sampling_params": sampling, "stream": True, **options}


async def play(
    url: str, requests: list[tuple[str, dict[str, Any]]], world: FleetProcess | None = None, victim: str = ""
) -> list[Continued]:
    """Run all requests at once, to their ends, and kill a process when half of the events have come."""
    found = [Continued() for _ in requests]
    tokens = [body.get("max_tokens") or body["sampling_params"]["max_new_tokens"] for _, body in requests]
    half = sum(tokens) // 2

    async def kill() -> None:
        while sum(len(each.events) for each in found) < half:
            await asyncio.sleep(0.01)
        assert world is not None
        world.kill_replica(0, victim)

    async with client_of(url) as http, asyncio.TaskGroup() as group:
        for (path, body), each in zip(requests, found, strict=True):
            group.create_task(to_its_end(http, path, body, each))
        if victim:
            group.create_task(kill())
    return found


async def to_its_end(http: httpx.AsyncClient, path: str, body: dict[str, Any], stream: Continued) -> None:
    until = time.monotonic() + PATIENCE
    while not (stream.is_done or stream.error):
        with contextlib.suppress(httpx.HTTPError):  # it is cut, or there is no front at the moment
            await _continue(http, path, body, stream)
        if not stream.is_done:
            stream.cuts += 1
            if time.monotonic() > until:
                stream.error = "it did not go on in time"
            await asyncio.sleep(PAUSE)


async def _continue(http: httpx.AsyncClient, path: str, body: dict[str, Any], stream: Continued) -> None:
    headers = {"Last-Event-ID": stream.last} if stream.last else {}
    async with http.stream("POST", path, json=body, headers=headers) as answer:
        if answer.status_code >= 500:
            return
        if answer.status_code != 200:
            stream.error = (await answer.aread()).decode()
            return
        id = ""
        async for line in answer.aiter_lines():
            if line.startswith("id: "):
                id = line.removeprefix("id: ")
            elif line == "data: [DONE]":
                stream.is_done = True
            elif line.startswith("data: ") and id:
                stream.events.append(_content(json.loads(line.removeprefix("data: "))))
                stream.last, id = id, ""


def _content(event: dict[str, Any]) -> str:
    """Return what an event says that another server says, too."""
    choice = event["choices"][0] if "choices" in event else {"text": event["text"], **event["meta_info"]}
    return f"{choice['text']!r} {choice['finish_reason']}"

"""Streams of completions that a fleet is asked for at once, and what came of each."""

from __future__ import annotations

import asyncio
import json
import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import httpx

from any_checkpoint import NAME

WORDS = [
    "the",
    "gate",
    "of",
    "a",
    "sluice",
    "lets",
    "water",
    "pass",
    "when",
    "it",
    "is",
    "high",
    "and",
    "keeps",
    "it",
    "when",
    "it",
    "is",
    "low",
]
TEMPERATURE = 0.8


@dataclass
class Stream:
    """The answer to one request."""

    text: str = ""
    finish_reason: str | None = None
    usage: dict[str, Any] = field(default_factory=dict)
    moments: list[float] = field(default_factory=list)
    """When each piece came."""
    error: str = ""

    def problem(self, max_tokens: int) -> str | None:
        """Return what is wrong with this stream alone, if anything."""
        if self.error or self.finish_reason != "length":
            return f"it ended with {self.finish_reason}: {self.error}"
        if self.usage.get("completion_tokens") != max_tokens:
            return f"it has {self.usage.get('completion_tokens')} tokens instead of {max_tokens}"
        return None


def bodies(count: int, max_tokens: int) -> list[dict[str, Any]]:
    """Return requests of several lengths; every other one is greedy."""
    draw = random.Random(1)
    return [
        {
            "model": NAME,
            "prompt": " ".join(draw.choices(WORDS, k=10 + 5 * number)),
            "max_tokens": max_tokens,
            "temperature": TEMPERATURE * (number % 2),
            "seed": 1000 + number,
            "ignore_eos": True,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        for number in range(count)
    ]


async def play(
    url: str, requests: Sequence[dict[str, Any]], on_piece: Callable[[], None] = lambda: None
) -> list[Stream]:
    """Run all requests at once, to their ends."""
    async with client_of(url) as http:
        return list(await asyncio.gather(*(play_one(http, body, on_piece) for body in requests)))


def client_of(url: str) -> httpx.AsyncClient:
    """Return a client with as many connections as it needs. To load certificates would take it 30 ms."""
    return httpx.AsyncClient(base_url=url, timeout=None, limits=httpx.Limits(max_connections=None), verify=False)


async def play_one(
    http: httpx.AsyncClient, body: dict[str, Any], on_piece: Callable[[], None] = lambda: None
) -> Stream:
    """Run one request to its end."""
    stream = Stream()
    async with http.stream("POST", "/v1/completions", json=body) as answer:
        if answer.status_code != 200:
            stream.error = (await answer.aread()).decode()
            return stream
        async for line in answer.aiter_lines():
            if not line.startswith("data: ") or line == "data: [DONE]":
                continue
            event = json.loads(line.removeprefix("data: "))
            if "error" in event:
                stream.error = str(event["error"])
                continue
            stream.usage = event.get("usage") or stream.usage
            for choice in event["choices"]:
                stream.text += choice["text"]
                stream.moments.append(time.perf_counter())
                stream.finish_reason = choice["finish_reason"] or stream.finish_reason
                on_piece()
    return stream

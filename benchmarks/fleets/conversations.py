"""Conversations on three replicas: what is found in the cache, and the time to the first token, by router."""

from __future__ import annotations

import asyncio
import json
import random
import statistics
import time
from dataclasses import dataclass
from typing import Any

import httpx

from benchmarks.fleets.process import fleet
from benchmarks.fleets.streams import WORDS

ENGINE = ("--max-total-tokens", "8192")
SYSTEM_WORDS, TURN_WORDS, ANSWER_TOKENS = 60, 60, 8
PAUSE_SECONDS = 0.5
"""Between an answer and the next turn, on average."""


@dataclass
class Turn:
    """What came of one turn."""

    ttft: float
    prompt_tokens: int
    cached_tokens: int


def measure(router: str, conversations: int, turns: int, seed: int) -> dict[str, Any]:
    """Run conversations on a fresh fleet."""
    with fleet("--replicas", "3", "--router", router, *ENGINE) as world:
        found = asyncio.run(_all(world.url, conversations, turns, seed))
    later = [turn for talk in found for turn in talk[1:]]
    ttfts = sorted(turn.ttft for turn in later)
    prompt = sum(turn.prompt_tokens for turn in later)
    return {
        "router": router,
        "later_turns": len(later),
        "cached_share": sum(turn.cached_tokens for turn in later) / prompt,
        "ttft_p50_ms": statistics.median(ttfts) * 1e3,
        "ttft_p99_ms": ttfts[min(len(ttfts) - 1, int(0.99 * len(ttfts)))] * 1e3,
    }


async def _all(url: str, conversations: int, turns: int, seed: int) -> list[list[Turn]]:
    async with httpx.AsyncClient(base_url=url, timeout=None, limits=httpx.Limits(max_connections=None)) as http:
        await _turn(http, "warm", 1)
        return list(await asyncio.gather(*(_talk(http, number, turns, seed) for number in range(conversations))))


async def _talk(http: httpx.AsyncClient, number: int, turns: int, seed: int) -> list[Turn]:
    draw = random.Random(f"{seed} {number}")
    text = " ".join(draw.choices(WORDS, k=SYSTEM_WORDS))
    found = []
    await asyncio.sleep(draw.expovariate(1 / PAUSE_SECONDS))
    for _ in range(turns):
        text += " " + " ".join(draw.choices(WORDS, k=TURN_WORDS))
        turn, answer = await _turn(http, text, ANSWER_TOKENS)
        found.append(turn)
        text += answer
        await asyncio.sleep(draw.expovariate(1 / PAUSE_SECONDS))
    return found


async def _turn(http: httpx.AsyncClient, prompt: str, tokens: int) -> tuple[Turn, str]:
    body = {"prompt": prompt, "max_tokens": tokens, "temperature": 0, "ignore_eos": True, "stream": True}
    body |= {"stream_options": {"include_usage": True}}
    began, first, text, usage = time.perf_counter(), 0.0, "", {}
    async with http.stream("POST", "/v1/completions", json=body) as answer:
        async for line in answer.aiter_lines():
            if not line.startswith("data: ") or line == "data: [DONE]":
                continue
            event = json.loads(line.removeprefix("data: "))
            usage = event.get("usage") or usage
            for choice in event["choices"]:
                first = first or time.perf_counter()
                text += choice["text"]
    cached = (usage.get("prompt_tokens_details") or {}).get("cached_tokens", 0)
    return Turn(first - began, usage["prompt_tokens"], cached), text

"""Mixes of requests that differ in lengths and rate: what an ITL target has to suit without being told."""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Asked:
    """A request of a mix."""

    at: float
    """Seconds after the beginning, in units of the undisturbed decode step."""
    prompt: int
    """Tokens."""
    outputs: int

    @property
    def is_long(self) -> bool:
        return self.prompt >= LONG


LONG = 600
"""Tokens from which on a prompt is a long one."""


@dataclass(frozen=True, slots=True)
class Mix:
    """Streams, and prompts that arrive beside them."""

    streams: int
    """Short prompts at the beginning, whose outputs last for the whole mix."""
    stream_outputs: int
    prompts: tuple[int, int]
    """Shortest and longest prompt of those that arrive later."""
    outputs: int
    every: float
    """Mean decode steps between arrivals."""
    burst: int
    """Prompts that arrive together."""
    requests: int


MIXES: Mapping[str, Mix] = {
    "chat": Mix(
        streams=4, stream_outputs=90, prompts=(60, 300), outputs=30, every=12, burst=1, requests=8
    ),
    "documents": Mix(
        streams=3, stream_outputs=90, prompts=(700, 1200), outputs=16, every=40, burst=1, requests=2
    ),
    "bursts": Mix(
        streams=2, stream_outputs=90, prompts=(200, 800), outputs=24, every=50, burst=2, requests=4
    ),
}  # fmt: skip


def requests_of(mix: Mix, scale: float, seed: int) -> list[Asked]:
    """Return the requests of a mix, by arrival.

    Args:
        scale: of all lengths; smaller ones to test the benchmark.
    """
    draw, at = random.Random(seed), 4.0

    def scaled(tokens: float) -> int:
        return max(2, round(tokens * scale))

    found = [Asked(0.0, scaled(40), scaled(mix.stream_outputs)) for _ in range(mix.streams)]
    for number in range(mix.requests):
        if number % mix.burst == 0:
            at += draw.expovariate(1 / mix.every)
        found.append(Asked(at, scaled(draw.randint(*mix.prompts)), scaled(mix.outputs)))
    return found

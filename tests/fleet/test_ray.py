"""A fleet on Ray itself: skipped where Ray is not installed."""

from __future__ import annotations

import asyncio
import random
from importlib.util import find_spec

import httpx
import pytest

from benchmarks.fleets.process import FleetProcess, fleet, run_command
from benchmarks.fleets.streams import bodies, play

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(find_spec("ray") is None, reason="Ray is not installed: pip install -e '.[ray]'"),
]
STREAMS, TOKENS, KILLS = 24, 200, 5
OPTIONS = ("--dtype", "float64", "--threads", "1", "--max-total-tokens", "16384")


def test_killed_replicas_lose_no_token() -> None:
    """24 streams, greedy and seeded, and five kills of the replicas that serve them."""
    with fleet("--replicas", "2", *OPTIONS) as world:
        chat = {"model": "sluice-nano", "messages": [{"role": "user", "content": "hello"}], "max_tokens": 4}
        answer = httpx.post(f"{world.url}/v1/chat/completions", json=chat, timeout=60)
        assert answer.json()["choices"][0]["finish_reason"] == "length"
        requests = bodies(STREAMS, TOKENS)
        undisturbed = asyncio.run(play(world.url, requests))
        disturbed = asyncio.run(play(world.url, requests, Killer(world, KILLS, STREAMS * TOKENS).on_piece))
    assert [stream.problem(TOKENS) for stream in undisturbed + disturbed] == [None] * (2 * STREAMS)
    assert [stream.text for stream in disturbed] == [stream.text for stream in undisturbed]


class Killer:
    """Kills replicas while pieces arrive.

    Args:
        pieces: about so many come.
    """

    def __init__(self, world: FleetProcess, kills: int, pieces: int, seed: int = 1) -> None:
        self._world = world
        self._draw = random.Random(seed)
        self._left = sorted(self._draw.sample(range(pieces // 20, pieces // 2), kills))
        self._count = 0

    def on_piece(self) -> None:
        self._count += 1
        if self._left and self._count >= self._left[0] and (found := self._world.replicas()):
            self._left.pop(0)
            self._world.kill_replica(self._draw.randrange(len(found)))


def test_what_cannot_be_honoured_is_refused() -> None:
    refused = run_command(["--replicas", "999", "--threads", "1", "--port", "18431"], 120)
    assert refused.returncode == 2
    assert "--replicas 999 is more than fit: each takes 1 CPU of one machine, and free are" in refused.stderr
    refused = run_command(["--address", "127.0.0.1:1"], 120)
    assert refused.returncode == 2
    assert "Ray cannot be reached at --address 127.0.0.1:1" in refused.stderr

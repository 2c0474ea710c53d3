"""Streams of a fleet whose replicas are killed: each must be that of the same request undisturbed."""

from __future__ import annotations

import random

from benchmarks.fleets.process import FleetProcess, fleet
from benchmarks.fleets.streams import bodies, play

OPTIONS = ("--replicas", "2", "--dtype", "float64", "--max-total-tokens", "16384")


class Killer:
    """Kills replicas while pieces arrive.

    Args:
        pieces: about so many come.
    """

    def __init__(self, world: FleetProcess, kills: int, pieces: int, seed: int = 1) -> None:
        self._world = world
        self._draw = random.Random(seed)
        self.left = sorted(self._draw.sample(range(pieces // 20, pieces // 2), kills))
        """Numbers of pieces at which one is still to be killed."""
        self._count = 0

    def on_piece(self) -> None:
        self._count += 1
        if self.left and self._count >= self.left[0] and (found := self._world.replicas()):
            self.left.pop(0)
            self._world.kill_replica(self._draw.randrange(len(found)))


async def survive(streams: int, tokens: int, kills: int) -> list[str]:
    """Return what is wrong: nothing, if no token was lost, repeated or changed."""
    requests = bodies(streams, tokens)
    with fleet(*OPTIONS) as world:
        undisturbed = await play(world.url, requests)
        killer = Killer(world, kills, streams * tokens)
        disturbed = await play(world.url, requests, killer.on_piece)
    found = [problem for each in undisturbed + disturbed if (problem := each.problem(tokens)) is not None]
    found += [
        f"stream {number} differs from the undisturbed one"
        for number, (one, other) in enumerate(zip(undisturbed, disturbed, strict=True))
        if one.text != other.text
    ]
    return found + ([f"{len(killer.left)} replicas were not killed"] if killer.left else [])

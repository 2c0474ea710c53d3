"""Streams of a fleet whose replicas are killed: each must be that of the same request undisturbed."""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence

from stress.fleets.process import PREFILL, REPLICA, FleetProcess, fleet
from stress.fleets.streams import Stream, bodies, play

OPTIONS = ("--replicas", "2", "--dtype", "float64", "--max-total-tokens", "16384")
APART = ("--prefill-replicas", "1", "--transfer-folder", "/dev/shm", "--split-tokens", "16")
"""Options of a fleet with a prefill replica, which computes nearly all prompts of the streams."""


class Killer:
    """Kills replicas while pieces arrive.

    Args:
        moments: numbers of the pieces at which one is killed.
        deployment: of the replicas that are killed.
    """

    def __init__(self, world: FleetProcess, moments: Iterable[int], deployment: str = REPLICA, seed: int = 1) -> None:
        self._world = world
        self._deployment = deployment
        self._draw = random.Random(seed)
        self.left = sorted(moments)
        """Numbers of pieces at which one is still to be killed."""
        self._count = 0

    def on_piece(self) -> None:
        self._count += 1
        if self.left and self._count >= self.left[0] and (found := self._world.replicas(self._deployment)):
            self.left.pop(0)
            self._world.kill_replica(self._draw.randrange(len(found)), self._deployment)


async def survive(streams: int, tokens: int, kills: int) -> list[str]:
    """Return what is wrong: nothing, if no token was lost, repeated or changed."""
    requests, pieces = bodies(streams, tokens), streams * tokens
    moments = random.Random(1).sample(range(pieces // 20, pieces // 2), kills)
    with fleet(*OPTIONS) as world:
        undisturbed = await play(world.url, requests)
        killer = Killer(world, moments)
        disturbed = await play(world.url, requests, killer.on_piece)
    return compared(undisturbed, disturbed, tokens) + not_killed(killer)


async def survive_apart(streams: int, tokens: int) -> list[str]:
    """Kill the prefill replica when it has computed a few of the prompts, and again when the streams run. Returns what
    is wrong with the streams, compared to those of a fleet without one."""
    requests = bodies(streams, tokens)
    with fleet(*OPTIONS) as world:
        undisturbed = await play(world.url, requests)
    with fleet(*OPTIONS, *APART) as world:
        killer = Killer(world, (3, streams * tokens // 2), PREFILL)
        disturbed = await play(world.url, requests, killer.on_piece)
    return compared(undisturbed, disturbed, tokens) + not_killed(killer)


def compared(undisturbed: Sequence[Stream], disturbed: Sequence[Stream], tokens: int) -> list[str]:
    """Return what is wrong with streams of so many tokens, or differs."""
    found = [problem for each in (*undisturbed, *disturbed) if (problem := each.problem(tokens)) is not None]
    return found + [
        f"stream {number} differs from the undisturbed one"
        for number, (one, other) in enumerate(zip(undisturbed, disturbed, strict=True))
        if one.text != other.text
    ]


def not_killed(killer: Killer) -> list[str]:
    return [f"{len(killer.left)} replicas were not killed"] if killer.left else []

"""When requests arrive, if the clock decides (an open loop): seconds after the start, in order.

A schedule is absolute: it is made before the run, and nothing that a server does moves it.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol


class Arrivals(Protocol):
    """Makes a schedule."""

    def times(self, count: int, rng: random.Random) -> list[float]:
        """The first `count` arrivals, in seconds, in order."""
        ...


@dataclass(frozen=True, slots=True)
class Every:
    """One after a fixed interval; the first at once."""

    seconds: float

    def times(self, count: int, rng: random.Random) -> list[float]:
        return [index * self.seconds for index in range(count)]


@dataclass(frozen=True, slots=True)
class Random:
    """Gaps drawn from a gamma distribution with mean `1 / rate` and variance `1 / (rate**2 * burstiness)`.

    `burstiness` 1 is a Poisson process, below 1 requests come in clusters, above 1 more evenly. The first arrives
    after a first gap.
    """

    rate: float
    burstiness: float = 1.0

    def times(self, count: int, rng: random.Random) -> list[float]:
        now, found = 0.0, []
        for _ in range(count):
            now += rng.gammavariate(self.burstiness, 1 / (self.rate * self.burstiness))
            found.append(now)
        return found


@dataclass(frozen=True, slots=True)
class Bursts:
    """`size` at once, again after every `seconds`; the first at once."""

    size: int
    seconds: float

    def times(self, count: int, rng: random.Random) -> list[float]:
        return [index // self.size * self.seconds for index in range(count)]


@dataclass(frozen=True, slots=True)
class At:
    """At these seconds, in order. Asking for more than there are is a bug of the caller."""

    seconds: Sequence[float]

    def times(self, count: int, rng: random.Random) -> list[float]:
        assert count <= len(self.seconds), f"{count} arrivals of {len(self.seconds)}"
        return list(self.seconds[:count])

"""The policies of routers: in turn, to the least loaded, to the better of two, to where the prefix is, and the one of
`expected`."""

from __future__ import annotations

import random
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from sluice.config import ConfigError
from sluice.routing.dispatch import Policy, QueuedWork, ReplicaChoice, RoutedRequest
from sluice.routing.expected import ExpectedTtft
from sluice.routing.prefixes import PrefixIndex


class RoundRobin(Policy):
    """Each replica in turn."""

    def __init__(self) -> None:
        self._next = 0

    def choose(self, request: RoutedRequest, loads: Mapping[str, QueuedWork], now: float) -> ReplicaChoice:
        chosen = self._next % len(loads)
        self._next = chosen + 1
        return ReplicaChoice(list(loads)[chosen], request.num_tokens)


class LeastLoaded(Policy):
    """The replica with the fewest queued prompt tokens; of several, the one with the fewest requests, in turn."""

    def __init__(self) -> None:
        self._next = 0

    def choose(self, request: RoutedRequest, loads: Mapping[str, QueuedWork], now: float) -> ReplicaChoice:
        keys, count = list(loads), len(loads)
        chosen = min(((self._next + step) % count for step in range(count)), key=lambda place: loads[keys[place]].order)
        self._next = chosen + 1
        return ReplicaChoice(keys[chosen], request.num_tokens)


class PowerOfTwo(Policy):
    """The less loaded of two replicas drawn at random (Mitzenmacher, "The Power of Two Choices in Randomized Load
    Balancing", 2001): several routers that know only of their own requests do not all choose the same one.

    Args:
        seed: equal seeds, equal draws.
    """

    def __init__(self, seed: int = 0) -> None:
        self._rng = random.Random(seed)

    def choose(self, request: RoutedRequest, loads: Mapping[str, QueuedWork], now: float) -> ReplicaChoice:
        drawn = self._rng.sample(list(loads), min(2, len(loads)))
        return ReplicaChoice(min(drawn, key=lambda key: loads[key].order), request.num_tokens)


class PrefixAware(Policy):
    """The replica that is expected to bring the first token first: the one with the fewest prompt tokens to compute,
    those queued and those of this prompt that its cache lacks. Of several it is the one with the fewest requests, then
    with the emptiest cache.

    So requests follow their prefix as long as the replica that has it is not late by more than the prefix saves. Then
    another replica computes it, and has it as well from then on.

    Args:
        cache_tokens: tokens that the prefix cache of one replica holds.
        page_size: tokens of a page of the replicas; prefixes are compared by pages.
    """

    def __init__(self, cache_tokens: int, page_size: int) -> None:
        self._capacity = cache_tokens // page_size
        self._page_size = page_size
        self._indexes: dict[str, PrefixIndex] = {}

    def add_replica(self, key: str) -> None:
        self._indexes[key] = PrefixIndex(self._capacity)

    def remove_replica(self, key: str) -> None:
        del self._indexes[key]

    def prefixes(self, key: str) -> PrefixIndex:
        return self._indexes[key]

    @property
    def most_bytes(self) -> int:
        return sum(index.most_bytes for index in self._indexes.values())

    def uncached_tokens(self, request: RoutedRequest, keys: Iterable[str]) -> dict[str, int]:
        digests, size = request.digests(self._page_size), self._page_size
        return {key: self._indexes[key].uncached(digests, size, request.num_tokens) for key in keys}

    def choose(self, request: RoutedRequest, loads: Mapping[str, QueuedWork], now: float) -> ReplicaChoice:
        digests, size = request.digests(self._page_size), self._page_size
        uncached = {key: self._indexes[key].uncached(digests, size, request.num_tokens) for key in loads}

        def order(key: str) -> tuple[int, int, int]:
            load = loads[key]
            return load.queued_tokens + uncached[key], load.num_requests, len(self._indexes[key])

        chosen = min(loads, key=order)
        self._indexes[chosen].add(digests)
        return ReplicaChoice(chosen, uncached[chosen])


class RouterOptions(NamedTuple):
    """What policies are made from."""

    cache_tokens: int
    """Tokens of the prefix cache of one replica on its device."""
    page_size: int
    """Tokens of a page of the replicas."""
    seed: int = 0
    tier_tokens: int = 0
    """Tokens of the lower tiers of one replica, if they hold cached pages."""

    @property
    def cached_tokens(self) -> int:
        """Tokens that the prefix cache of one replica holds, wherever they are."""
        return self.cache_tokens + self.tier_tokens


PREFIX_AWARE, EXPECTED_TTFT = "prefix-aware", "expected-ttft"
POLICIES = ("round-robin", "least-loaded", "power-of-two", PREFIX_AWARE, EXPECTED_TTFT)
TOLD = (PREFIX_AWARE, EXPECTED_TTFT)
"""Policies that use what replicas tell of their caches."""


def make_policy(name: str, options: RouterOptions) -> Policy:
    """
    Raises:
        ConfigError: there is no such policy.
    """
    match name:
        case "round-robin":
            return RoundRobin()
        case "least-loaded":
            return LeastLoaded()
        case "power-of-two":
            return PowerOfTwo(options.seed)
        case "prefix-aware":
            return PrefixAware(options.cached_tokens, options.page_size)
        case "expected-ttft":
            return ExpectedTtft(options.cached_tokens, options.page_size, options.seed)
    raise ConfigError(f"--router must be one of {', '.join(POLICIES)}, got {name!r}")

"""ExpectedTtft: the policy that sends a request to where its first token is expected first."""

from __future__ import annotations

import random
from collections import OrderedDict
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import NamedTuple

from sluice.routing.dispatch import Policy, QueuedWork, ReplicaChoice, RoutedRequest, usual_speed
from sluice.routing.prefixes import PrefixIndex

ALIKE = 1.05
"""Ratio of times to a first token that a router does not tell apart: measured speeds differ by more from one moment to
the next, and the faster of two idle replicas would get all requests."""
STAYS_FOR = 0.5
"""Share of the computing that cached tokens save by which a session's replica may be late."""
MOST_SESSIONS = 1 << 16
BYTES_PER_SESSION = 400


class _Place(NamedTuple):
    """A replica as a place for one request."""

    key: str
    is_full: bool
    """It has no room for the prompt."""
    seconds: float
    """Seconds to the first token; tokens, if no replica says how fast it is."""
    uncached_tokens: int
    saved: float
    """Part of the time that cached tokens save."""
    num_requests: int
    num_digests: int


class ExpectedTtft(Policy):
    """The replica from which the first token is expected first: after the prompt tokens that are queued there, and
    those of this prompt that its cache lacks, at the speed that it has published. A replica that has no room for the
    prompt comes after all that have. Among times that are about equal, the replica with the fewest tokens to compute
    for this request is taken, then the one with the fewest requests, then the one of which the fewest pages are known.

    A request of a session goes to the replica of the request before it, unless that is late: later than another one by
    more than half of the computing that the cached tokens save, since others pay for that, too.

    Of a prompt of which nothing is cached anywhere, two replicas drawn at random are compared (see `PowerOfTwo`).

    Args:
        cache_tokens: tokens that the prefix cache of one replica holds.
        page_size: tokens of a page of the replicas.
        seed: equal seeds, equal draws.
        most_sessions: those of the least recent requests are forgotten.
    """

    def __init__(self, cache_tokens: int, page_size: int, seed: int = 0, *, most_sessions: int = MOST_SESSIONS) -> None:
        self._most_sessions = most_sessions
        self._capacity = cache_tokens // page_size
        self._page_size = page_size
        self._rng = random.Random(seed)
        self._indexes: dict[str, PrefixIndex] = {}
        self._sessions: OrderedDict[tuple[str, str], str] = OrderedDict()
        """The replica of each session's latest request, by namespace and session, the latest one last."""

    def add_replica(self, key: str) -> None:
        self._indexes[key] = PrefixIndex(self._capacity)

    def remove_replica(self, key: str) -> None:
        del self._indexes[key]
        for session in [session for session, home in self._sessions.items() if home == key]:
            del self._sessions[session]

    @property
    def num_sessions(self) -> int:
        """Sessions of which the replica is known."""
        return len(self._sessions)

    def prefixes(self, key: str) -> PrefixIndex:
        return self._indexes[key]

    def uncached_tokens(self, request: RoutedRequest, keys: Iterable[str]) -> dict[str, int]:
        digests, size = request.digests(self._page_size), self._page_size
        return {key: self._indexes[key].uncached(digests, size, request.num_tokens) for key in keys}

    @property
    def most_bytes(self) -> int:
        indexes = sum(index.most_bytes for index in self._indexes.values())
        return indexes + self._most_sessions * BYTES_PER_SESSION

    def choose(self, request: RoutedRequest, loads: Mapping[str, QueuedWork], now: float) -> ReplicaChoice:
        digests = request.digests(self._page_size)
        places = self._places(request, digests, loads, now)
        chosen = self._home(request, places) or self._best(places)
        self._indexes[chosen.key].add(digests)
        self._remember(request, chosen.key)
        return ReplicaChoice(chosen.key, chosen.uncached_tokens)

    def _places(
        self, request: RoutedRequest, digests: Sequence[bytes], loads: Mapping[str, QueuedWork], now: float
    ) -> dict[str, _Place]:
        """Return what each replica is expected to take for a request."""
        usual, found = usual_speed(loads.values()), dict[str, _Place]()
        for key, load in loads.items():
            index, speed = self._indexes[key], load.speed(usual)
            uncached = index.uncached(digests, self._page_size, request.num_tokens)
            cached = request.num_tokens - uncached
            is_full = load.published is not None and load.published.free_tokens < load.sent_since + uncached
            seconds = (load.backlog(now, speed) + uncached) * speed
            found[key] = _Place(key, is_full, seconds, uncached, cached * speed, load.num_requests, len(index))
        return found

    def _best(self, places: Mapping[str, _Place]) -> _Place:
        """Return the place to take for a request that belongs nowhere."""
        found: Collection[_Place] = places.values()
        if not any(place.saved for place in found):
            found = self._rng.sample(list(found), min(2, len(found)))
        return _first(found)

    def _home(self, request: RoutedRequest, places: Mapping[str, _Place]) -> _Place | None:
        """Return the place of a request's session, if it has one that is not late."""
        if request.session is None:
            return None
        home = places.get(self._sessions.get((request.extra_key, request.session), ""))
        if home is None:
            return None
        best = _first(places.values())
        is_late = home.seconds > best.seconds + STAYS_FOR * max(0.0, home.saved - best.saved)
        return None if is_late or (home.is_full and not best.is_full) else home

    def _remember(self, request: RoutedRequest, key: str) -> None:
        if request.session is None:
            return
        session = request.extra_key, request.session
        self._sessions[session] = key
        self._sessions.move_to_end(session)
        if len(self._sessions) > self._most_sessions:
            self._sessions.popitem(last=False)


def _first(places: Collection[_Place]) -> _Place:
    """Return the place to take, of all."""
    room = [place for place in places if not place.is_full] or places
    within = ALIKE * min(place.seconds for place in room)
    alike = (place for place in room if place.seconds <= within)
    return min(alike, key=lambda place: (place.uncached_tokens, place.num_requests, place.num_digests))

"""ReplicaRouter: which replica of a fleet serves a request, of those that have the model.

The router of Ray asks in a thread of its own; the rest comes from the event loop.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import NamedTuple

from sluice.engine.messages import Stats
from sluice.fleet.identity import Identity
from sluice.fleet.kv_event_sync import EVERYTHING, KvChanges
from sluice.routing.dispatch import Dispatcher, NoReplica, RoutedRequest
from sluice.routing.occupancy import ObservedOccupancy, PrefillSpeed

LOGGER = logging.getLogger("sluice.fleet")
AVOID_SECONDS = 5.0
"""Seconds for which a replica that has lost a request gets others only if there is nowhere else to send them."""


@dataclass(frozen=True, slots=True)
class ReplicaCandidate:
    """A replica that runs."""

    key: str
    identity: Identity
    version: str
    """Version of the application that started the replica; each update has another one."""


@dataclass(slots=True, eq=False)
class ReplicaAttempt:
    """One sending of a request to a replica. Only the chooser changes it."""

    request_id: int
    avoid: frozenset[str] = frozenset()
    """Keys of the replicas that have lost the request."""
    key: str | None = None
    """Key of the replica that was chosen."""
    is_sent: bool = False
    """A replica has taken it."""
    is_computed: bool = False
    """Whether its prompt was computed by a prefill replica, so that it keeps no other prompt waiting."""
    is_closed: bool = False
    """It is over, although the router's thread may not know that yet."""


class ReplicaReport(NamedTuple):
    """What a replica tells of itself."""

    stats: Stats
    pages: KvChanges | None = None
    """Changes of the replica's prefix cache; None if there are none."""


class RouterCounts(NamedTuple):
    """What a chooser has counted."""

    sent: Mapping[str, int]
    """Requests by the key of their replica."""
    kept_out: int
    """Replicas that run and may not serve."""


class ReplicaRouter:
    """Chooses replicas by a policy, and keeps out those of another model.

    Args:
        identity: that of the replicas which may serve.
        page_size: tokens of their pages.
        now: returns seconds.
    """

    def __init__(
        self, dispatcher: Dispatcher, identity: Identity, page_size: int, now: Callable[[], float] = time.monotonic
    ) -> None:
        self.identity = identity
        self._page_size = page_size
        self._now = now
        self._dispatcher = dispatcher
        self._lock = threading.Lock()
        self._open: set[int] = set()
        self._kept_out: set[str] = set()
        self._avoided_until: dict[str, float] = {}
        self._sent: Counter[str] = Counter()
        self._speeds: dict[str, PrefillSpeed] = {}
        self._following: dict[str, int] = {}
        """Number of the next change of each replica's cache, of those that are followed."""

    @property
    def replicas(self) -> list[str]:
        """Keys of the replicas that may serve, as far as they are known."""
        with self._lock:
            return list(self._dispatcher.loads)

    @contextmanager
    def locked(self) -> Iterator[Dispatcher]:
        """Let nothing change while a caller looks at the loads and caches of the replicas."""
        with self._lock:
            yield self._dispatcher

    def counts(self) -> RouterCounts:
        """Return what has happened so far."""
        with self._lock:
            return RouterCounts(dict(self._sent), len(self._kept_out))

    def admit(self, candidates: Iterable[ReplicaCandidate]) -> list[str]:
        """Take the replicas that run for all that there are, and return the keys of those that may serve."""
        with self._lock:
            return self._admit(candidates)

    def admit_for(self, attempt: ReplicaAttempt, candidates: Iterable[ReplicaCandidate]) -> list[str]:
        """Do as `admit`, and leave out the replicas that have just lost a request, if there are others."""
        with self._lock:
            return self._admit_for(attempt, candidates)

    def choose(
        self, attempt: ReplicaAttempt, request: RoutedRequest, candidates: Iterable[ReplicaCandidate]
    ) -> str | None:
        """Return the key of the replica that a request goes to; None: none of them may serve it, or the attempt is
        over.

        A second call for the same attempt takes the place of the first one.
        """
        with self._lock:
            keys = self._admit_for(attempt, candidates)
            if attempt.is_closed:
                return None
            self._release(attempt)
            try:
                attempt.key = self._dispatcher.route(attempt.request_id, request, now=self._now(), among=keys)
            except NoReplica:
                return None
            self._open.add(attempt.request_id)
            if attempt.is_computed:
                self._dispatcher.first_token(attempt.request_id)
            return attempt.key

    def sent(self, attempt: ReplicaAttempt, key: str) -> None:
        """Note that a replica has taken a request."""
        with self._lock:
            self._sent[key] += 1
            attempt.key, attempt.is_sent = key, True

    def first_wanted(self, key: str) -> int:
        """Return the number of the first change of a replica's cache that is not known (`kv_event_sync`)."""
        with self._lock:
            return self._following.get(key, EVERYTHING)

    def told(self, answers: Mapping[str, ReplicaReport], asked_at: float) -> None:
        """Take what replicas report of themselves.

        Args:
            answers: by key, of all that answer.
            asked_at: before they did, in seconds of the same clock.
        """
        with self._lock:
            speeds = {key: self._speeds.get(key) or PrefillSpeed() for key in answers}
            self._speeds = speeds
            for key, (stats, _) in answers.items():
                self._dispatcher.update(key, self._occupancy(stats, speeds[key]), asked_at)
        for key, (_, pages) in answers.items():
            if pages is not None:
                self._follow(key, pages)

    def _follow(self, key: str, pages: KvChanges) -> None:
        """Note what has changed in a replica's cache. Changes that do not follow on those that are known are left out:
        another answer brought them, or what was known has been forgotten since."""
        with self._lock:
            if key not in self._dispatcher.loads or pages.first not in (EVERYTHING, self._following.get(key)):
                return
            index = self._dispatcher.policy.prefixes(key)
            self._following[key] = pages.following
        if index is None:
            return
        for event in pages.events:
            with self._lock:  # not for all of them: a request may have to be routed
                index.follow(event)

    def _occupancy(self, stats: Stats, speed: PrefillSpeed) -> ObservedOccupancy:
        full, totals = stats.occupancy, stats.totals
        return ObservedOccupancy(
            queued_prefill_tokens=stats.queued_prefill_tokens,
            num_running=full.running + full.loading,
            num_waiting=full.waiting + full.compiling + full.held,
            free_tokens=(full.free_pages + full.cached_pages) * self._page_size,
            seconds_per_prefill_token=speed.seen(totals.prefill_squares, totals.prefill_products),
            speed_weight=speed.weight,
            itl_margin=None if totals.itl is None else totals.itl.margin,
        )

    def first_token(self, attempt: ReplicaAttempt) -> None:
        """Note that a request has a token."""
        with self._lock:
            if attempt.request_id in self._open:
                self._dispatcher.first_token(attempt.request_id)

    def ended(self, attempt: ReplicaAttempt) -> None:
        """Note that a request is over at its replica. Further calls have no effect."""
        with self._lock:
            self._close(attempt)

    def lost(self, attempt: ReplicaAttempt) -> None:
        """Note that the replica of a request cannot continue it: other requests are sent elsewhere for some time, and
        what was in its cache counts for nothing."""
        with self._lock:
            self._close(attempt)
            if attempt.key is not None and attempt.key in self._dispatcher.loads:
                self._avoided_until[attempt.key] = self._now() + AVOID_SECONDS
                self._dispatcher.forget_cache(attempt.key)
                self._following.pop(attempt.key, None)

    def _close(self, attempt: ReplicaAttempt) -> None:
        if not attempt.is_closed:
            attempt.is_closed = True
            self._release(attempt)

    def _release(self, attempt: ReplicaAttempt) -> None:
        if attempt.request_id in self._open:
            self._open.remove(attempt.request_id)
            self._dispatcher.ended(attempt.request_id)

    def _admit_for(self, attempt: ReplicaAttempt, candidates: Iterable[ReplicaCandidate]) -> list[str]:
        keys, now = self._admit(candidates), self._now()
        others = [key for key in keys if key not in attempt.avoid]
        well = [key for key in others if self._avoided_until.get(key, now) <= now]
        return well or others or keys

    def _admit(self, candidates: Iterable[ReplicaCandidate]) -> list[str]:
        admitted: list[str] = []
        foreign: set[str] = set()
        for each in candidates:
            reason = each.identity.difference(self.identity)
            if reason is None:
                admitted.append(each.key)
                continue
            foreign.add(each.key)
            if each.key not in self._kept_out:
                LOGGER.warning("the replica %s is kept out: %s", each.key, reason)
        self._kept_out = foreign
        for key in self._dispatcher.loads.keys() - set(admitted):
            self._dispatcher.remove_replica(key)
            self._avoided_until.pop(key, None)
            self._following.pop(key, None)
        for key in admitted:
            if key not in self._dispatcher.loads:
                self._dispatcher.add_replica(key)
        return admitted

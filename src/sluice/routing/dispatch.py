"""Dispatcher: sends requests to replicas by a policy, and counts what each replica has to do.

A replica's load is known from what was sent to it and what came back: a prompt is queued until the first token of its
answer, and a request is open until its end. So a replica need not be asked, and is never late to answer. If it tells
what it has to do all the same (`ObservedOccupancy`), a policy can use that, with what was sent since.

Replicas come and go. Each has a key, which is a name of the caller's. Times are seconds of the caller's clock.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from sluice.routing.occupancy import ObservedOccupancy
from sluice.routing.prefixes import PrefixIndex


class NoReplica(Exception):
    """There is no replica that a request could be sent to."""


class RoutedRequest(Protocol):
    """A request as a policy sees it."""

    @property
    def num_tokens(self) -> int:
        """Tokens of its prompt."""
        ...

    @property
    def extra_key(self) -> str:
        """Namespace of the prefix cache."""
        ...

    @property
    def session(self) -> str | None:
        """Conversation that it belongs to, if that is known."""
        ...

    def digests(self, page_size: int) -> Sequence[bytes]:
        """Return the digests of the full pages of its prompt (`kv.digests.page_digests`)."""
        ...


@dataclass(slots=True)
class QueuedWork:
    """What a replica has to do."""

    queued_tokens: int = 0
    """Prompt tokens, without those expected in its cache, of requests that have no token yet."""
    num_requests: int = 0
    """Requests that have not ended."""
    published: ObservedOccupancy | None = None
    """What it said of itself last; None: nothing yet."""
    taken_at: float = 0.0
    """When that was so."""
    sent_since: int = 0
    """Tokens of `queued_tokens` that were sent since then."""

    @property
    def order(self) -> tuple[int, int]:
        """Replicas with less to do have smaller ones."""
        return self.queued_tokens, self.num_requests

    def speed(self, usual: UsualSpeed) -> float:
        """Return the seconds that a prompt token takes: what the replica has published, as far as it has measured
        much, and the usual.

        Args:
            usual: of all replicas.
        """
        said = self.published
        if said is None or said.seconds_per_prefill_token is None:
            return usual.seconds
        own, weight = said.seconds_per_prefill_token, said.speed_weight
        return (weight * own + usual.weight * usual.seconds) / (weight + usual.weight)

    def backlog(self, now: float, speed: float) -> float:
        """Return the prompt tokens that are to be computed before those of a new request: what the replica had queued
        when it said so, less what it has computed since, and what was sent since.

        Args:
            speed: seconds that a prompt token takes there.
        """
        said = self.published
        if said is None:
            return self.queued_tokens
        return max(0.0, said.queued_prefill_tokens - (now - self.taken_at) / speed) + self.sent_since


class UsualSpeed(NamedTuple):
    """What a prompt token takes at the replicas."""

    seconds: float
    weight: float
    """Weight beside that of a replica's own measurement."""


USUAL_SHARE = 0.1
"""Weight of the usual speed beside a replica's own, as a share of what a replica has measured on average. So a replica
that has measured as much as the others has its own speed, and one that has computed prompts of a few words has
theirs."""


def usual_speed(loads: Collection[QueuedWork]) -> UsualSpeed:
    """Return the mean seconds of a prompt token of the replicas that have published theirs, by how much they have
    measured. If none has, a token counts as a second, and times are numbers of tokens."""
    known = [load.published for load in loads if load.published is not None]
    measured = [(said.seconds_per_prefill_token, said.speed_weight) for said in known if said.seconds_per_prefill_token]
    total = sum(weight for _, weight in measured)
    if not total:
        return UsualSpeed(1.0, 1.0)
    return UsualSpeed(sum(own * weight for own, weight in measured) / total, USUAL_SHARE * total / len(measured))


class ReplicaChoice(NamedTuple):
    """A replica, and the prompt tokens that it is expected to compute for the request."""

    replica: str
    uncached_tokens: int


class Policy(ABC):
    """Chooses replicas."""

    def add_replica(self, key: str) -> None:
        return

    def remove_replica(self, key: str) -> None:
        """Forget what is known of a replica."""
        return

    def prefixes(self, key: str) -> PrefixIndex | None:
        """Return what is known of a replica's cache, to update with what it stores and removes; None: the policy does
        not look at that."""
        return None

    def uncached_tokens(self, request: RoutedRequest, keys: Iterable[str]) -> dict[str, int]:
        """Return the prompt tokens that each of some replicas is expected to compute for a request: at least 1, and no
        more than it has."""
        return dict.fromkeys(keys, request.num_tokens)

    @property
    def most_bytes(self) -> int:
        """Memory that its knowledge takes at most, with the replicas that there are."""
        return 0

    @abstractmethod
    def choose(self, request: RoutedRequest, loads: Mapping[str, QueuedWork], now: float) -> ReplicaChoice:
        """Return the replica that serves a request. It is sent there.

        Args:
            loads: of the replicas to choose from, in the order in which they came; at least one.
        """


class _Sent(NamedTuple):
    load: QueuedWork
    uncached_tokens: int
    at: float


class Dispatcher:
    """Keeps the loads of replicas.

    Args:
        replicas: their keys.
    """

    def __init__(self, policy: Policy, replicas: Iterable[str] = ()) -> None:
        self.loads: dict[str, QueuedWork] = {}
        self.policy = policy
        self._queued: dict[int, _Sent] = {}
        self._open: dict[int, QueuedWork] = {}
        for key in replicas:
            self.add_replica(key)

    def add_replica(self, key: str) -> None:
        """Send requests to a replica from now on. Nothing is known of its cache.

        Raises:
            ValueError: there is a replica of this key.
        """
        if key in self.loads:
            raise ValueError(f"there is a replica {key!r} already")
        self.loads[key] = QueuedWork()
        self.policy.add_replica(key)

    def remove_replica(self, key: str) -> None:
        """Send no more requests to a replica. Those that it has may continue to their ends, or be sent elsewhere once
        they are noted as ended.

        Raises:
            KeyError: there is no replica of this key.
        """
        del self.loads[key]
        self.policy.remove_replica(key)

    def forget_cache(self, key: str) -> None:
        """Note that nothing is known of a replica's cache any more.

        Raises:
            KeyError: there is no replica of this key.
        """
        self.policy.remove_replica(key)
        self.policy.add_replica(key)

    @property
    def queued(self) -> Sequence[int]:
        """Ids of requests without a token, in the order in which they came."""
        return list(self._queued)

    @property
    def open(self) -> Sequence[int]:
        """Ids of requests that have not ended, in the order in which they came."""
        return list(self._open)

    def update(self, key: str, occupancy: ObservedOccupancy, taken_at: float) -> None:
        """Note what a replica says of itself. What comes later than a younger one, or of a replica that has gone, is
        left out.

        Args:
            taken_at: when it was so, or a moment before, such as that of asking: what was sent from then on is added.
        """
        load = self.loads.get(key)
        if load is None or (load.published is not None and taken_at < load.taken_at):
            return
        load.published, load.taken_at = occupancy, taken_at
        load.sent_since = sum(
            sent.uncached_tokens for sent in self._queued.values() if sent.load is load and sent.at >= taken_at
        )

    def route(
        self, request_id: int, request: RoutedRequest, *, now: float = 0.0, among: Collection[str] | None = None
    ) -> str:
        """Return the key of the replica that a request goes to.

        Args:
            request_id: that of no open request.
            now: compared with the times at which replicas published; it does not go back.
            among: replicas that may serve it, of those that are there; None: all.

        Raises:
            NoReplica: there is none.
        """
        assert request_id not in self._open, f"request {request_id} is open already"
        loads = self.loads if among is None else {key: load for key, load in self.loads.items() if key in among}
        if not loads:
            wanted = "" if among is None else f" among the {len(among)} that may serve it"
            raise NoReplica(f"there is no replica for request {request_id}{wanted}")
        key, uncached = self.policy.choose(request, loads, now)
        load = self.loads[key]
        self._queued[request_id] = _Sent(load, uncached, max(now, load.taken_at))
        self._open[request_id] = load
        load.queued_tokens += uncached
        load.sent_since += uncached
        load.num_requests += 1
        return key

    def first_token(self, request_id: int) -> None:
        """Note that a request has a token. Further calls have no effect."""
        sent = self._queued.pop(request_id, None)
        if sent is not None:
            sent.load.queued_tokens -= sent.uncached_tokens
            if sent.at >= sent.load.taken_at:
                sent.load.sent_since -= sent.uncached_tokens

    def ended(self, request_id: int) -> None:
        """Note that a request is over, however it ended."""
        self.first_token(request_id)
        self._open.pop(request_id).num_requests -= 1

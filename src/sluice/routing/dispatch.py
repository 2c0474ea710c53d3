"""Dispatcher: sends requests to replicas by a policy, and counts what each replica has to do.

A replica's load is known from what was sent to it and what came back: a prompt is queued until the first token of its
answer, and a request is open until its end. So a replica need not be asked, and is never late to answer.

Replicas come and go. Each has a key, which is a name of the caller's.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol


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

    def tokens(self) -> Sequence[int]:
        """Return the ids of its prompt."""
        ...


@dataclass(slots=True)
class Load:
    """What a replica has to do."""

    queued_tokens: int = 0
    """Prompt tokens, without those expected in its cache, of requests that have no token yet."""
    num_requests: int = 0
    """Requests that have not ended."""

    @property
    def order(self) -> tuple[int, int]:
        """Replicas with less to do have smaller ones."""
        return self.queued_tokens, self.num_requests


class Choice(NamedTuple):
    """A replica, and the prompt tokens that it is expected to compute for the request."""

    replica: str
    uncached_tokens: int


class Policy(ABC):
    """Chooses replicas."""

    def add_replica(self, key: str) -> None:
        """Note that there is a replica more."""
        return

    def remove_replica(self, key: str) -> None:
        """Forget what is known of a replica."""
        return

    @abstractmethod
    def choose(self, request: RoutedRequest, loads: Mapping[str, Load]) -> Choice:
        """Return the replica that serves a request. It is sent there.

        Args:
            loads: of the replicas to choose from, in the order in which they came; at least one.
        """


class _Sent(NamedTuple):
    load: Load
    uncached_tokens: int


class Dispatcher:
    """Keeps the loads of replicas.

    Args:
        replicas: their keys.
    """

    def __init__(self, policy: Policy, replicas: Iterable[str] = ()) -> None:
        self.loads: dict[str, Load] = {}
        self._policy = policy
        self._queued: dict[int, _Sent] = {}
        self._open: dict[int, Load] = {}
        for key in replicas:
            self.add_replica(key)

    def add_replica(self, key: str) -> None:
        """Send requests to a replica from now on. Nothing is known of its cache.

        Raises:
            ValueError: there is a replica of this key.
        """
        if key in self.loads:
            raise ValueError(f"there is a replica {key!r} already")
        self.loads[key] = Load()
        self._policy.add_replica(key)

    def remove_replica(self, key: str) -> None:
        """Send no more requests to a replica. Those that it has may go on to their ends, or be sent elsewhere once they
        are noted as ended.

        Raises:
            KeyError: there is no replica of this key.
        """
        del self.loads[key]
        self._policy.remove_replica(key)

    @property
    def queued(self) -> Sequence[int]:
        """Ids of requests without a token, in the order in which they came."""
        return list(self._queued)

    @property
    def open(self) -> Sequence[int]:
        """Ids of requests that have not ended, in the order in which they came."""
        return list(self._open)

    def route(self, request_id: int, request: RoutedRequest, among: Collection[str] | None = None) -> str:
        """Return the key of the replica that a request goes to.

        Args:
            request_id: that of no open request.
            among: replicas that may serve it, of those that are there; None: all.

        Raises:
            NoReplica: there is none.
        """
        assert request_id not in self._open, f"request {request_id} is open already"
        loads = self.loads if among is None else {key: load for key, load in self.loads.items() if key in among}
        if not loads:
            wanted = "" if among is None else f" among the {len(among)} that may serve it"
            raise NoReplica(f"there is no replica for request {request_id}{wanted}")
        key, uncached = self._policy.choose(request, loads)
        load = self.loads[key]
        self._queued[request_id] = _Sent(load, uncached)
        self._open[request_id] = load
        load.queued_tokens += uncached
        load.num_requests += 1
        return key

    def first_token(self, request_id: int) -> None:
        """Note that a request has a token. Further calls have no effect."""
        sent = self._queued.pop(request_id, None)
        if sent is not None:
            sent.load.queued_tokens -= sent.uncached_tokens

    def ended(self, request_id: int) -> None:
        """Note that a request is over, however it ended."""
        self.first_token(request_id)
        self._open.pop(request_id).num_requests -= 1

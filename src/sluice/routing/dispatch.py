"""Dispatcher: sends requests to replicas by a policy, and counts what each replica has to do.

A replica's load is known from what was sent to it and what came back: a prompt is queued until the first token of its
answer, and a request is open until its end. So a replica need not be asked, and is never late to answer.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol


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

    replica: int
    uncached_tokens: int


class Policy(Protocol):
    """Chooses replicas."""

    def choose(self, request: RoutedRequest, loads: Sequence[Load]) -> Choice:
        """Return the replica that serves a request. It is sent there."""
        ...


class _Sent(NamedTuple):
    replica: int
    uncached_tokens: int


class Dispatcher:
    """Keeps the loads of replicas.

    Args:
        num_replicas: at least 1.
    """

    def __init__(self, policy: Policy, num_replicas: int) -> None:
        self.loads = [Load() for _ in range(num_replicas)]
        self._policy = policy
        self._queued: dict[int, _Sent] = {}
        self._open: dict[int, int] = {}

    @property
    def queued(self) -> Sequence[int]:
        """Ids of requests without a token, in the order in which they came."""
        return list(self._queued)

    @property
    def open(self) -> Sequence[int]:
        """Ids of requests that have not ended, in the order in which they came."""
        return list(self._open)

    def route(self, request_id: int, request: RoutedRequest) -> int:
        """Return the replica that a request goes to.

        Args:
            request_id: that of no open request.
        """
        assert request_id not in self._open, f"request {request_id} is open already"
        replica, uncached = self._policy.choose(request, self.loads)
        self._queued[request_id] = _Sent(replica, uncached)
        self._open[request_id] = replica
        self.loads[replica].queued_tokens += uncached
        self.loads[replica].num_requests += 1
        return replica

    def first_token(self, request_id: int) -> None:
        """Note that a request has a token. Further calls have no effect."""
        sent = self._queued.pop(request_id, None)
        if sent is not None:
            self.loads[sent.replica].queued_tokens -= sent.uncached_tokens

    def ended(self, request_id: int) -> None:
        """Note that a request is over, however it ended."""
        self.first_token(request_id)
        self.loads[self._open.pop(request_id)].num_requests -= 1

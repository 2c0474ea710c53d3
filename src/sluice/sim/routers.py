"""Routers of simulated replicas: the dispatcher that would stand in front of servers, told what has come back."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from sluice.routing.dispatch import Dispatcher, Load, Policy, RoutedRequest
from sluice.routing.policies import RoundRobin, RouterOptions, make_policy
from sluice.scheduler.setup import SchedulerSetup


class Router(Protocol):
    """Chooses replicas for requests (see `Dispatcher`). Requests are named by their tickets."""

    def route(self, request_id: int, request: RoutedRequest) -> int:
        """Return the index of the replica that serves a request. What has come back before it arrives is known."""
        ...

    def first_token(self, request_id: int) -> None:
        """Note that a request has a token."""
        ...

    def ended(self, request_id: int) -> None:
        """Note that a request is over."""
        ...


class SimRouter:
    """A dispatcher of replicas whose keys are their indexes.

    Args:
        replicas: number of them.
    """

    def __init__(self, policy: Policy, replicas: int) -> None:
        self._dispatcher = Dispatcher(policy, map(str, range(replicas)))

    @property
    def loads(self) -> Sequence[Load]:
        """What the replicas have to do, as far as the router knows."""
        return list(self._dispatcher.loads.values())

    def route(self, request_id: int, request: RoutedRequest) -> int:
        return int(self._dispatcher.route(request_id, request))

    def first_token(self, request_id: int) -> None:
        self._dispatcher.first_token(request_id)

    def ended(self, request_id: int) -> None:
        self._dispatcher.ended(request_id)


def sim_router(name: str, setup: SchedulerSetup, replicas: int, seed: int = 0) -> Router:
    """Return a router in front of equal replicas.

    Raises:
        ConfigError: there is no such policy.
    """
    cache_tokens = setup.num_pages * setup.page_size if setup.prefix_caching else 0
    return SimRouter(make_policy(name, RouterOptions(cache_tokens, setup.page_size, seed)), replicas)


def in_turn(replicas: int) -> Router:
    """Return a router that takes one replica after the other."""
    return SimRouter(RoundRobin(), replicas)

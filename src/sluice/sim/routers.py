"""Routers of simulated replicas: the dispatcher that would stand in front of servers, told what has come back."""

from __future__ import annotations

from typing import Protocol

from sluice.routing.dispatch import Dispatcher, RoutedRequest
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


def sim_router(name: str, setup: SchedulerSetup, replicas: int, seed: int = 0) -> Router:
    """Return a router in front of equal replicas.

    Raises:
        ConfigError: there is no such policy.
    """
    cache_tokens = setup.num_pages * setup.page_size if setup.prefix_caching else 0
    policy = make_policy(name, RouterOptions(replicas, cache_tokens, setup.page_size, seed))
    return Dispatcher(policy, replicas)


def in_turn(replicas: int) -> Router:
    """Return a router that takes one replica after the other."""
    return Dispatcher(RoundRobin(), replicas)

"""Routers of simulated replicas: the dispatcher that would stand in front of servers, with what has come back."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from sluice.routing.dispatch import Dispatcher, Policy, QueuedWork, RoutedRequest
from sluice.routing.policies import TOLD, RoundRobin, RouterOptions, make_policy
from sluice.scheduler.setup import SchedulerSetup
from sluice.sim.publishing import PUBLISH_SECONDS, Published


class Router(Protocol):
    """Chooses replicas for requests (see `Dispatcher`). Requests are named by their tickets."""

    def route(self, request_id: int, request: RoutedRequest, now: float) -> int:
        """Return the index of the replica that serves a request. What has come back before it arrives is known.

        Args:
            now: when the request arrives, in seconds.
        """
        ...

    def first_token(self, request_id: int) -> None:
        """Note that a request has a token."""
        ...

    def ended(self, request_id: int) -> None:
        """Note that a request is over."""
        ...

    def update(self, replica: int, published: Published) -> None:
        """Note what a replica has published."""
        ...


class SimRouter:
    """A dispatcher of replicas whose keys are their indexes.

    Args:
        replicas: number of them.
    """

    def __init__(self, policy: Policy, replicas: int) -> None:
        self.dispatcher = Dispatcher(policy, map(str, range(replicas)))

    @property
    def loads(self) -> Sequence[QueuedWork]:
        """What the replicas have to do, as far as the router knows."""
        return list(self.dispatcher.loads.values())

    def route(self, request_id: int, request: RoutedRequest, now: float) -> int:
        return int(self.dispatcher.route(request_id, request, now=now))

    def first_token(self, request_id: int) -> None:
        self.dispatcher.first_token(request_id)

    def ended(self, request_id: int) -> None:
        self.dispatcher.ended(request_id)

    def update(self, replica: int, published: Published) -> None:
        key = str(replica)
        if published.occupancy is not None:
            self.dispatcher.update(key, published.occupancy, published.taken_at)
        index = self.dispatcher.policy.prefixes(key)
        if index is not None:
            for event in published.events:
                index.follow(event)


def sim_router(name: str, setup: SchedulerSetup, replicas: int, seed: int = 0) -> SimRouter:
    """Return a router in front of equal replicas.

    Raises:
        ConfigError: there is no such policy.
    """
    size = setup.page_size
    device, behind = setup.num_pages, setup.tiers.host_pages + setup.tiers.disk_pages
    cached = (device * size, behind * size) if setup.prefix_caching else (0, 0)
    options = RouterOptions(cached[0], size, seed, cached[1])
    return SimRouter(make_policy(name, options), replicas)


def publish_every(name: str) -> float:
    """Return the seconds after which the replicas behind a router publish what they have to do; 0: it does not look."""
    return PUBLISH_SECONDS if name in TOLD else 0.0


def in_turn(replicas: int) -> Router:
    """Return a router that takes one replica after the other."""
    return SimRouter(RoundRobin(), replicas)

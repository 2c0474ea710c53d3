"""Routers of simulated replicas: the policies of `sluice.routing`, told what has come back so far."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from sluice.routing.dispatch import Dispatcher
from sluice.routing.policies import RouterOptions, make_policy
from sluice.scheduler.setup import SchedulerSetup
from sluice.sim.replica import Replica
from sluice.sim.simulate import Router
from sluice.sim.workload import Arrival


@dataclass(frozen=True, slots=True)
class Routed:
    """An arrival as a policy sees it."""

    arrival: Arrival

    @property
    def num_tokens(self) -> int:
        return self.arrival.prompt.length

    @property
    def extra_key(self) -> str:
        return self.arrival.extra_key

    def tokens(self) -> Sequence[int]:
        return self.arrival.prompt.tokens()


class PolicyRouter:
    """Lets a dispatcher choose. Before each choice it is told of the tokens and ends up to then."""

    def __init__(self, dispatcher: Dispatcher) -> None:
        self._dispatcher = dispatcher

    def choose(self, arrival: Arrival, replicas: Sequence[Replica]) -> int:
        has_token = {key: known for replica in replicas for key, known in replica.open_requests()}
        for key in self._dispatcher.queued:
            if has_token.get(key, True):
                self._dispatcher.first_token(key)
        for key in self._dispatcher.open:
            if key not in has_token:
                self._dispatcher.ended(key)
        return self._dispatcher.route(id(arrival), Routed(arrival))


def sim_router(name: str, setup: SchedulerSetup, replicas: int, seed: int = 0) -> Router:
    """Return a router in front of equal replicas.

    Raises:
        ConfigError: there is no such policy.
    """
    cache_tokens = setup.num_pages * setup.page_size if setup.prefix_caching else 0
    policy = make_policy(name, RouterOptions(replicas, cache_tokens, setup.page_size, seed))
    return PolicyRouter(Dispatcher(policy, replicas))

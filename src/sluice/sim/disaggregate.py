"""Disaggregated prefill: some replicas compute prompts, others decode, and the KV travels from the ones to the others
(Zhong et al., "DistServe", 2024; Patel et al., "Splitwise", 2024).

A request ends at its prefill replica with its first token. With it, it comes to a decode replica, whose scheduler finds
the full pages of the prompt on a tier behind the device. It loads those that the device lacks, as soon as there is a
slot and memory for the request, and the load takes as long as the transfer. What is behind the last full page is
computed again, with the first token.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from operator import attrgetter
from typing import NamedTuple

from sluice.bench.records import Record
from sluice.routing.split import PrefillSplit, SplitLimits
from sluice.scheduler.setup import SchedulerSetup
from sluice.sim.fleet import LocalFleet
from sluice.sim.loop import NEVER
from sluice.sim.machine import Machine
from sluice.sim.remote import with_remote_tier
from sluice.sim.replica import Done, SimulatedReplica
from sluice.sim.routers import Router, publish_every, sim_router
from sluice.sim.simulate import RoutedArrival, Sessions, Side, in_due_order, record_of, replicas_of, send, tell
from sluice.sim.transfer import Disaggregation
from sluice.sim.workload import Arrival, Workload, in_order
from sluice.sim.world import CopyRates, World
from sluice.types import FinishReason

MOST_PAGES = 1 << 20
"""Most pages of the tier of one decode replica."""


def simulate_split(
    machine: Machine,
    workload: Sequence[Arrival],
    split: Disaggregation,
    replicas: int,
    router: str,
    seed: int,
    on_end: Callable[[], object],
) -> list[Record]:
    """Simulate a workload on a machine (see `simulate_disaggregated`).

    Args:
        replicas: that decode; a request goes to the least loaded of them.
        router: of the prefill replicas.
    """
    setup, world, depth, count = machine.setup, machine.world, machine.depth, split.prefill_replicas
    transfer = CopyRates(split.latency, split.token)
    routers = sim_router(router, setup, count, seed), sim_router("least-loaded", setup, replicas, seed)
    limits = SplitLimits(split.least_tokens, math.inf if split.patience is None else split.patience)
    return simulate_disaggregated(
        workload,
        replicas_of(setup, world, count, depth=depth, seed=seed, publish_every=publish_every(router)),
        decode_replicas_of(setup, world, replicas, transfer, workload, depth=depth, seed=seed + count),
        routers,
        on_end,
        PrefillSplit(routers[0].dispatcher, routers[1].dispatcher, limits).is_apart,
    )


def decode_replicas_of(
    setup: SchedulerSetup,
    world: World,
    count: int,
    transfer: CopyRates,
    workload: Sequence[Arrival],
    *,
    depth: int = 1,
    seed: int = 0,
    leaps: bool = True,
) -> list[SimulatedReplica]:
    """Return equal replicas that load the prompts of a workload.

    Args:
        setup: of a scheduler with a prefix cache. Its own tiers are left out.
        transfer: what loading the pages of a prompt takes. Each replica loads one after the other.
    """
    assert setup.prefix_caching, "pages of other replicas come through the prefix cache"
    pages = sum(arrival.prompt.length // setup.page_size for arrival in workload)
    remote = with_remote_tier(setup, max(1, min(pages, MOST_PAGES)))
    return replicas_of(remote, replace(world, copies=transfer), count, depth=depth, seed=seed, leaps=leaps)


class _Request(NamedTuple):
    """A request that has not ended."""

    arrival: Arrival
    session: int
    turn: int
    cached_tokens: int | None = None
    """Cached tokens of the prompt on the prefill replica; None if it went to none."""


IsApart = Callable[[Arrival, float], bool]
"""Says whether a prefill replica computes the prompt of a request that arrives at a moment."""


def simulate_disaggregated(
    workload: Workload,
    prefill: Sequence[SimulatedReplica],
    decode: Sequence[SimulatedReplica],
    routers: tuple[Router, Router],
    on_end: Callable[[], object] = lambda: None,
    is_apart: IsApart = lambda arrival, now: True,
) -> list[Record]:
    """Let a workload arrive at prefill replicas, and end at decode replicas.

    Args:
        decode: of `decode_replicas_of`.
        routers: of both.
        on_end: called when a request leaves a replica.
        is_apart: which requests come to the prefill replicas. Others are computed by the decode replicas.

    Returns:
        A record for each request, in the order in which they were due. The time between the first token and the second
        has the transfer in it. `cached_tokens` are those of the replica that computed the prompt.

    Raises:
        ConfigError: the workload is not in order, is empty, or a router chooses a replica that does not exist; or more
            pages than `MOST_PAGES` wait at a decode replica.
    """
    sides = Side(LocalFleet(prefill), routers[0]), Side(LocalFleet(decode), routers[1])
    run = _Split(*sides, on_end)
    for ticket, arrival in enumerate(in_order(workload)):
        run.advance(arrival.time)
        run.arrive(ticket, arrival, is_apart=is_apart(arrival, arrival.time))
    run.advance(NEVER)
    if run.num_open:
        raise RuntimeError(f"{run.num_open} requests never ended in the simulation")
    return in_due_order(run.found)


class _Split:
    """Replicas of both kinds on one clock. What decodes waits for what prefill brings, and never the other way round,
    so prefill replicas are the first to do what comes before a moment."""

    def __init__(self, prefill: Side, decode: Side, on_end: Callable[[], object]) -> None:
        self.found: list[Record] = []
        self._prefill = prefill
        self._decode = decode
        self._on_end = on_end
        self._sessions = Sessions()
        self._requests: dict[int, _Request] = {}

    @property
    def num_open(self) -> int:
        """Requests that have not ended."""
        return len(self._requests)

    def arrive(self, ticket: int, arrival: Arrival, *, is_apart: bool) -> None:
        """Let a request come to a replica of one kind."""
        self._requests[ticket] = _Request(arrival, *self._sessions.number(arrival, ticket))
        if is_apart:
            send(self._prefill, RoutedArrival(ticket, arrival.time, replace(arrival, output_tokens=1, max_tokens=1)))
        else:
            send(self._decode, RoutedArrival(ticket, arrival.time, arrival))

    def advance(self, until: float) -> None:
        """Let all do what comes before a moment."""
        for done in sorted(self._over(self._prefill, until), key=attrgetter("ended")):
            request = self._requests[done.ticket]
            end = _end_with_first_token(done, request.arrival)
            if end is None:
                cached = max(0, done.last.num_cached_tokens)
                self._requests[done.ticket] = request._replace(cached_tokens=cached)
                self._decode_until(done.ended)
                send(self._decode, RoutedArrival(done.ticket, done.ended, request.arrival, done.tokens[0]))
            else:
                done = done._replace(arrival=request.arrival, last=done.last._replace(finish_reason=end))
                self._note(done)
        self._decode_until(until)

    def _decode_until(self, until: float) -> None:
        for done in self._over(self._decode, until):
            self._note(done)

    def _over(self, side: Side, until: float) -> list[Done]:
        """Let replicas run, tell their router, and return the requests that are over there."""
        progress = side.fleet.advance(until)
        tell(side.router, progress)
        for _ in progress.done:
            self._on_end()
        return progress.done

    def _note(self, done: Done) -> None:
        _, session, turn, cached = self._requests.pop(done.ticket)
        record = record_of(done, session, turn)
        self.found.append(record if cached is None else replace(record, cached_tokens=cached))


def _end_with_first_token(done: Done, arrival: Arrival) -> FinishReason | None:
    """Return why a request that leaves a prefill replica is over; None: it continues at a decode replica."""
    if not done.tokens:
        return done.last.finish_reason
    if arrival.output_tokens == 1:
        return FinishReason.STOP if arrival.max_tokens > 1 else FinishReason.LENGTH
    if arrival.leaves is not None and arrival.leaves.after_tokens == 1:
        return FinishReason.ABORT
    return None

"""Disaggregated prefill: some replicas compute prompts, others decode, and the KV travels from the ones to the others
(Zhong et al., "DistServe", 2024; Patel et al., "Splitwise", 2024).

A request ends at its prefill replica with its first token. With it, it comes to a decode replica, whose scheduler finds
the full pages of the prompt on a tier behind the device. It loads those that the device lacks, as soon as there is a
slot and memory for the request, and the load takes as long as the transfer. What is behind the last full page is
computed again, with the first token. Prefill replicas do not depend on decode replicas, so they are simulated first.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from operator import attrgetter
from typing import NamedTuple

from sluice.bench.records import Record
from sluice.scheduler.setup import SchedulerSetup
from sluice.sim.fleet import LocalFleet
from sluice.sim.machine import Machine
from sluice.sim.remote import with_remote_tier
from sluice.sim.replica import Done, Replica
from sluice.sim.routers import Router, sim_router
from sluice.sim.simulate import Entry, Sessions, in_due_order, record_of, replicas_of, serve
from sluice.sim.transfer import Disaggregation
from sluice.sim.workload import Arrival, Workload, in_order
from sluice.sim.world import CopyRates, World
from sluice.types import FinishReason

MOST_PAGES = 1 << 20
"""Of the tier of one decode replica."""


class _Request(NamedTuple):
    """A request at a prefill replica."""

    arrival: Arrival
    session: int
    turn: int


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
    return simulate_disaggregated(
        workload,
        replicas_of(setup, world, count, depth=depth, seed=seed),
        decode_replicas_of(setup, world, replicas, transfer, workload, depth=depth, seed=seed + count),
        (sim_router(router, setup, count, seed), sim_router("least-loaded", setup, replicas, seed)),
        on_end,
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
) -> list[Replica]:
    """Return equal replicas that load the prompts of a workload.

    Args:
        setup: of a scheduler with a prefix cache. Its own tiers are left out.
        transfer: what loading the pages of a prompt takes. Each replica loads one after the other.
    """
    assert setup.prefix_caching, "pages of other replicas come through the prefix cache"
    pages = sum(arrival.prompt.length // setup.page_size for arrival in workload)
    remote = with_remote_tier(setup, max(1, min(pages, MOST_PAGES)))
    return replicas_of(remote, replace(world, copies=transfer), count, depth=depth, seed=seed, leaps=leaps)


def simulate_disaggregated(
    workload: Workload,
    prefill: Sequence[Replica],
    decode: Sequence[Replica],
    routers: tuple[Router, Router],
    on_end: Callable[[], object] = lambda: None,
) -> list[Record]:
    """Let a workload arrive at prefill replicas, and end at decode replicas.

    Args:
        decode: of `decode_replicas_of`.
        routers: of both.
        on_end: called when a request leaves a replica.

    Returns:
        A record for each request, in the order in which they were due. The time between the first token and the second
        has the transfer in it. `cached_tokens` are those of the prefill replica.

    Raises:
        ConfigError: the workload is not in order, is empty, or a router chooses a replica that does not exist; or more
            pages than `MOST_PAGES` wait at a decode replica.
    """
    sessions, requests = Sessions(), dict[int, _Request]()
    found: list[Record] = []
    moved: list[Done] = []

    def prompts() -> Iterator[Entry]:
        for ticket, arrival in enumerate(in_order(workload)):
            requests[ticket] = _Request(arrival, *sessions.number(arrival, ticket))
            yield Entry(ticket, arrival.time, replace(arrival, output_tokens=1, max_tokens=1))

    for done in serve(prompts(), LocalFleet(prefill), routers[0], on_end):
        arrival, session, turn = requests[done.ticket]
        end = _end_with_first_token(done, arrival)
        if end is None:
            moved.append(done)
        else:
            done = done._replace(arrival=arrival, last=done.last._replace(finish_reason=end))
            found.append(record_of(done, session, turn))
    moved.sort(key=attrgetter("ended"))
    cached = {done.ticket: done.last.num_cached_tokens for done in moved}
    entries = (Entry(done.ticket, done.ended, requests[done.ticket].arrival, done.tokens[0]) for done in moved)
    for done in serve(entries, LocalFleet(decode), routers[1], on_end):
        _, session, turn = requests[done.ticket]
        found.append(replace(record_of(done, session, turn), cached_tokens=max(0, cached[done.ticket])))
    return in_due_order(found)


def _end_with_first_token(done: Done, arrival: Arrival) -> FinishReason | None:
    """Return why a request that leaves a prefill replica is over; None: it goes on at a decode replica."""
    if not done.tokens:
        return done.last.finish_reason
    if arrival.output_tokens == 1:
        return FinishReason.STOP if arrival.max_tokens > 1 else FinishReason.LENGTH
    if arrival.leaves is not None and arrival.leaves.after_tokens == 1:
        return FinishReason.ABORT
    return None

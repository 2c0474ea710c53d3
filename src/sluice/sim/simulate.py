"""Runs a workload over replicas behind a router, and returns records as a measurement does."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from statistics import median_low
from typing import NamedTuple

from sluice.bench.records import CountedBy, Failure, Record, TokenArrival
from sluice.bench.workload import LONG, LONG_FACTOR, SHORT
from sluice.config import ConfigError
from sluice.scheduler.setup import SchedulerSetup
from sluice.sim.fleet import Fleet, FleetProgress, LocalFleet, ReplicaSpec
from sluice.sim.loop import NEVER
from sluice.sim.replica import Done, SimulatedReplica, is_left
from sluice.sim.routers import Router, in_turn
from sluice.sim.workload import Arrival, Workload, in_order
from sluice.sim.world import World


def replicas_of(
    setup: SchedulerSetup,
    world: World,
    count: int = 1,
    *,
    depth: int = 1,
    seed: int = 0,
    leaps: bool = True,
    publish_every: float = 0.0,
) -> list[SimulatedReplica]:
    """Return equal replicas, whose steps have residuals of their own (see `ReplicaSpec`)."""
    return ReplicaSpec(setup, world, count, depth, seed, leaps, publish_every).make(range(count))


def simulate(
    workload: Workload,
    replicas: Sequence[SimulatedReplica],
    router: Router | None = None,
    on_end: Callable[[], object] = lambda: None,
) -> list[Record]:
    """Let a workload arrive and run it to its end.

    Args:
        router: None: one replica after the other.
        on_end: called when a request is over.

    Returns:
        A record for each request, in the order in which they were due.

    Raises:
        ConfigError: the workload is not in order, is empty, or a router chooses a replica that does not exist.
    """
    found = list(run(workload, LocalFleet(replicas), router or in_turn(len(replicas)), on_end))
    return in_due_order(found)


class RoutedArrival(NamedTuple):
    """A request that comes to replicas."""

    ticket: int
    at: float
    """Seconds; not before the entry that precedes it."""
    arrival: Arrival
    first: TokenArrival | None = None
    """The first token, if another replica sampled it."""


class Sessions:
    """Numbers conversations and their turns."""

    def __init__(self) -> None:
        self._numbers: dict[str, int] = {}
        self._turns: dict[int, int] = {}

    def number(self, arrival: Arrival, ticket: int) -> tuple[int, int]:
        """Return the conversation of an arrival, and the turn that it is."""
        if arrival.session is None:
            return ticket, 0
        session = self._numbers.setdefault(arrival.session, ticket)
        turn = self._turns[session] = self._turns.get(session, -1) + 1
        return session, turn


def run(
    workload: Workload,
    fleet: Fleet,
    router: Router,
    on_end: Callable[[], object] = lambda: None,
    epoch: float = 0.0,
) -> Iterator[Record]:
    """Yield the records of a workload as its requests end (see `simulate`).

    Args:
        epoch: seconds after which the router sees the replicas again; 0: at each request.
    """
    sessions, numbers = Sessions(), dict[int, tuple[int, int]]()

    def entries() -> Iterator[RoutedArrival]:
        for ticket, arrival in enumerate(in_order(workload)):
            numbers[ticket] = sessions.number(arrival, ticket)
            yield RoutedArrival(ticket, arrival.time, arrival)

    for done in serve(entries(), fleet, router, on_end, epoch):
        yield record_of(done, *numbers.pop(done.ticket))


def serve(
    entries: Iterable[RoutedArrival],
    fleet: Fleet,
    router: Router,
    on_end: Callable[[], object],
    epoch: float = 0.0,
) -> Iterator[Done]:
    """Let requests come to replicas, and yield each when it is over (see `run`)."""
    now, num_open = 0.0, 0

    def advance(until: float) -> Iterator[Done]:
        progress = fleet.advance(until)
        tell(router, progress)
        for done in progress.done:
            on_end()
            yield done

    side = Side(fleet, router)
    for entry in entries:
        seen_at = entry.at if not epoch else entry.at // epoch * epoch
        if seen_at > now:
            now = seen_at
            for done in advance(now):
                num_open -= 1
                yield done
        send(side, entry)
        num_open += 1
    for done in advance(NEVER):
        num_open -= 1
        yield done
    if num_open:
        raise RuntimeError(f"{num_open} requests never ended in the simulation")


class Side(NamedTuple):
    """Replicas, and what chooses among them."""

    fleet: Fleet
    router: Router


def send(side: Side, entry: RoutedArrival) -> None:
    """Let a request come to the replica that the router chooses.

    Raises:
        ConfigError: there is no such replica.
    """
    ticket, at, arrival, first = entry
    chosen = side.router.route(ticket, arrival, at)
    if not 0 <= chosen < side.fleet.size:
        raise ConfigError(f"the router chose replica {chosen} of {side.fleet.size}")
    side.fleet.submit(chosen, arrival, ticket, first)
    if first is not None:
        side.router.first_token(ticket)


def tell(router: Router, progress: FleetProgress) -> None:
    """Tell a router what has come back from its replicas."""
    for ticket in progress.started:
        router.first_token(ticket)
    for done in progress.done:
        router.ended(done.ticket)
    for replica, published in progress.published:
        router.update(replica, published)


def record_of(done: Done, session: int, turn: int) -> Record:
    """Return the record of a request."""
    arrival, last, failure, reason = done.arrival, done.last, None, None
    assert last.finish_reason is not None, f"{last} is no end"
    if is_left(last):
        failure = Failure("left", "the client left before the end of its answer")
    elif last.finish_reason.is_failure:
        failure = Failure(last.finish_reason.value, last.error or "the request was ended")
    else:
        reason = last.finish_reason.value
    return Record(
        session=session,
        turn=turn,
        background=False,
        kind=arrival.kind,
        prompt_tokens=arrival.prompt.length,
        max_tokens=arrival.max_tokens,
        due=done.due,
        sent=done.due,
        accepted=done.due,
        ended=done.ended,
        arrivals=done.tokens,
        counted_by=CountedBy.IDS,
        cached_tokens=max(0, last.num_cached_tokens),
        finish_reason=reason,
        failure=failure,
    )


def in_due_order(records: list[Record]) -> list[Record]:
    """Return records in the order in which their requests were due, each with a class."""
    return with_kinds(sorted(records, key=lambda record: (record.due, record.session)))


def with_kinds(records: Sequence[Record]) -> list[Record]:
    """Return the records, those without a class with one by the length of their prompts, as `sluice bench` has it."""
    if not records:
        return []
    long_from = LONG_FACTOR * median_low(record.prompt_tokens for record in records)
    return [
        record if record.kind else replace(record, kind=LONG if record.prompt_tokens >= long_from else SHORT)
        for record in records
    ]

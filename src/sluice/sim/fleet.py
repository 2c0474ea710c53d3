"""Fleets: the replicas of a simulation, in this process or in several.

Replicas do not depend on each other between the moments at which a router looks at them. So those of several processes
run at the same time up to the next such moment, and do exactly what they would do in one process.
"""

from __future__ import annotations

import multiprocessing
import signal
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import pairwise
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from typing import NamedTuple, Protocol

from sluice.bench.records import TokenArrival
from sluice.scheduler.setup import SchedulerSetup
from sluice.sim.loop import SimulatedTimes
from sluice.sim.publishing import Published, PublishTimes
from sluice.sim.replica import Done, SimulatedReplica
from sluice.sim.workload import Arrival
from sluice.sim.world import World, WorldTimes


class FleetProgress(NamedTuple):
    """What replicas did."""

    started: list[int]
    """Tickets of requests that have their first token."""
    done: list[Done]
    """Requests that are over."""
    published: list[tuple[int, Published]]
    """What replicas have published, each with its index."""


class Fleet(Protocol):
    """Replicas that run when they are told to."""

    @property
    def size(self) -> int:
        """Number of replicas."""
        ...

    def submit(self, replica: int, arrival: Arrival, ticket: int, first: TokenArrival | None = None) -> None:
        """Let a request arrive at a replica (see `SimulatedReplica.submit`)."""
        ...

    def advance(self, until: float) -> FleetProgress:
        """Let all replicas do what comes before a moment."""
        ...


class LocalFleet:
    """Replicas in this process."""

    def __init__(self, replicas: Sequence[SimulatedReplica]) -> None:
        self._replicas = replicas

    @property
    def size(self) -> int:
        return len(self._replicas)

    def submit(self, replica: int, arrival: Arrival, ticket: int, first: TokenArrival | None = None) -> None:
        self._replicas[replica].submit(arrival, ticket, first=first)

    def advance(self, until: float) -> FleetProgress:
        found = FleetProgress([], [], [])
        for index, replica in enumerate(self._replicas):
            replica.advance(until)
            if (published := replica.published()) is not None:
                found.published.append((index, published))
            if replica.started:
                found.started.extend(replica.started)
                replica.started.clear()
            if replica.done:
                found.done.extend(replica.done)
                replica.done.clear()
        return found


class ReplicaSpec(NamedTuple):
    """What equal replicas are made from, which have residuals of their own."""

    setup: SchedulerSetup
    world: World
    replicas: int = 1
    depth: int = 1
    seed: int = 0
    leaps: bool = True
    publish_every: float = 0.0
    """Seconds after which each says what it has to do, not all at once; 0: they do not."""

    def make(self, indexes: Sequence[int]) -> list[SimulatedReplica]:
        """Return the replicas of some indexes."""
        return [self.replica(index, self.times(index)) for index in indexes]

    def times(self, index: int) -> WorldTimes:
        """Return how long the steps of a replica take."""
        return WorldTimes(self.world, self.setup, self.seed * self.replicas + index)

    def replica(self, index: int, times: SimulatedTimes) -> SimulatedReplica:
        every = self.publish_every
        return SimulatedReplica(
            self.setup,
            times,
            depth=self.depth,
            intake=self.world.intake,
            rates=self.world.copies,
            leaps=self.leaps,
            publishes=PublishTimes(every, every * index / self.replicas) if every else None,
        )


class _Submission(NamedTuple):
    """A request for a replica of a group."""

    replica: int
    arrival: Arrival
    ticket: int
    first: TokenArrival | None


class _Group(NamedTuple):
    """A process with some of the replicas."""

    process: BaseProcess
    connection: Connection
    submissions: list[_Submission]
    """Submissions that were not sent yet."""


class GroupedFleet:
    """Replicas in several processes, made by `in_processes`. Requests are sent to them when they run."""

    def __init__(self, groups: Sequence[_Group], places: Sequence[tuple[int, int]]) -> None:
        self._groups = groups
        self._places = places
        """Group of each replica, and its index there."""
        self._firsts = [places.index((number, 0)) for number in range(len(groups))]
        """The first replica of each group."""

    @property
    def size(self) -> int:
        return len(self._places)

    def submit(self, replica: int, arrival: Arrival, ticket: int, first: TokenArrival | None = None) -> None:
        group, index = self._places[replica]
        self._groups[group].submissions.append(_Submission(index, arrival, ticket, first))

    def advance(self, until: float) -> FleetProgress:
        """
        Raises:
            RuntimeError: a process ended.
        """
        for group in self._groups:
            group.connection.send((group.submissions, until))
            group.submissions.clear()
        found = FleetProgress([], [], [])
        for number, group in enumerate(self._groups):
            try:
                answer = group.connection.recv()
            except EOFError as error:
                group.process.join()
                raise RuntimeError(f"a process of replicas ended with {group.process.exitcode}") from error
            if isinstance(answer, Exception):
                raise answer
            found.started.extend(answer.started)
            found.done.extend(answer.done)
            found.published.extend((self._firsts[number] + index, each) for index, each in answer.published)
        return found


@contextmanager
def in_processes(spec: ReplicaSpec, processes: int) -> Iterator[GroupedFleet]:
    """Yield replicas that are shared out among processes, as equal parts as can be.

    Args:
        processes: from 1 to the number of replicas.
    """
    edges = [spec.replicas * number // processes for number in range(processes + 1)]
    parts = [range(start, stop) for start, stop in pairwise(edges)]
    places = [(group, index) for group, part in enumerate(parts) for index in range(len(part))]
    groups: list[_Group] = []
    try:
        for part in parts:
            ours, theirs = multiprocessing.Pipe()
            process = multiprocessing.Process(target=_run_group, args=(theirs, spec, part), daemon=True)
            process.start()
            theirs.close()
            groups.append(_Group(process, ours, []))
        yield GroupedFleet(groups, places)
    finally:
        for group in groups:
            group.connection.close()
            group.process.terminate()
        for group in groups:
            group.process.join()


def _run_group(connection: Connection, spec: ReplicaSpec, indexes: Sequence[int]) -> None:
    """Run some replicas, until the connection is closed."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the first process ends this one
    fleet = LocalFleet(spec.make(indexes))
    while True:
        try:
            submissions, until = connection.recv()
        except EOFError:
            return
        try:
            for each in submissions:
                fleet.submit(*each)
            answer: FleetProgress | Exception = fleet.advance(until)
        except Exception as error:  # noqa: BLE001 - raised again where the fleet is advanced
            answer = error
        connection.send(answer)

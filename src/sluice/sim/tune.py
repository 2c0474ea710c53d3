"""Tuning: the settings with which simulated traffic meets its objectives best, found by successive halving.

All candidates run on the busiest part of the traffic, the better ones on a longer part, and so on up to the whole
(Jamieson and Talwalkar, "Non-stochastic Best Arm Identification and Hyperparameter Optimization", 2016). All runs draw
the same residuals, so that candidates differ by their settings alone. A run ends early once it is certain not to be
among those that continue, which changes no result. The last few are repeated with other residuals: a difference between
two settings counts if it is larger than what these repeats differ by.
"""

from __future__ import annotations

import math
from bisect import insort
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from statistics import fmean

from sluice.config import ConfigError
from sluice.routing.policies import POLICIES
from sluice.sim.candidates import Candidate
from sluice.sim.fleet import LocalFleet, ReplicaSpec
from sluice.sim.loop import SimulatedTimes
from sluice.sim.routers import publish_every, sim_router
from sluice.sim.simulate import run
from sluice.sim.slo import Figure, Slo
from sluice.sim.tally import Counts, SloTally
from sluice.sim.workload import Arrival
from sluice.types import BatchPlan, Bound

KEPT_SHARE = 1 / 3
"""Share of a round's candidates that enter the next one."""
GROWTH = 4
"""How many times the traffic of a round the next one has."""
LEAST_REQUESTS = 32
"""Fewest requests of a round."""
FINALISTS = 6
REPEATS = 5


class CountedTimes:
    """Times of steps, which count the limits that kept steps from holding more."""

    def __init__(self, times: SimulatedTimes, counts: Counter[Bound]) -> None:
        self._times = times
        self._counts = counts

    def ends_at(self, plan: BatchPlan, now: float, free_at: float) -> float:
        self._counts[plan.bound_by] += 1
        return self._times.ends_at(plan, now, free_at)

    def turn_at(self, now: float, *, has_waited: bool) -> float:
        return self._times.turn_at(now, has_waited=has_waited)


@dataclass(frozen=True, slots=True)
class CandidateOutcome:
    """What simulated runs of one candidate brought."""

    candidate: Candidate
    replicas: int
    runs: tuple[Mapping[Figure, float], ...]
    """The figures of each repeat."""
    slo: Slo
    bounds: Mapping[Bound, float] = field(default_factory=dict)
    """Share of the steps that each limit kept from holding more, all repeats together; `NOTHING` is left out."""

    @property
    def excesses(self) -> list[float]:
        """By how many times the worst figure of each repeat is above its limit."""
        return [self.slo.excess(each) for each in self.runs]

    @property
    def excess(self) -> float:
        return fmean(self.excesses)

    @property
    def num_met(self) -> int:
        """Repeats that met all objectives."""
        return sum(excess <= 1 for excess in self.excesses)

    @property
    def is_met(self) -> bool:
        """Whether all repeats met all objectives."""
        return self.num_met == len(self.runs)

    def figure(self, figure: Figure) -> tuple[float, float, float]:
        """Return mean, least and greatest value of the repeats."""
        values = [each[figure] for each in self.runs]
        return fmean(values), min(values), max(values)

    def means(self) -> dict[Figure, float]:
        return {each.figure: self.figure(each.figure)[0] for each in self.slo.objectives}

    def dominates(self, other: CandidateOutcome) -> bool:
        """Return whether this one needs no more replicas, and is as good in every figure and better in one."""
        ours, theirs = self.means(), other.means()
        pairs = [(self.replicas, other.replicas), *((ours[each], theirs[each]) for each in ours)]
        return all(one <= two for one, two in pairs) and any(one < two for one, two in pairs)


@dataclass(frozen=True, slots=True)
class Tuned:
    """What was found."""

    pick: CandidateOutcome
    """The settings to use: of the fewest replicas that meet the objectives; if none do, those that come nearest."""
    outcomes: tuple[CandidateOutcome, ...]
    """All that were repeated, best first."""
    measured: CandidateOutcome
    """The engine as it was measured, with as many replicas as the pick."""
    tried: int
    requests: int
    """Requests simulated in all."""

    def frontier(self) -> list[CandidateOutcome]:
        """Return the outcomes that no other one dominates, best first; of equal ones that with the fewest settings."""
        found: list[CandidateOutcome] = []
        for each in sorted(self.outcomes, key=lambda each: len(each.candidate.settings)):
            if not any(other.dominates(each) for other in self.outcomes) and not any(
                other.replicas == each.replicas and other.runs == each.runs for other in found
            ):
                found.append(each)
        return sorted(found, key=lambda each: (not each.is_met, each.replicas, each.excess))


class Tuner:
    """Runs candidates on traffic.

    Args:
        arrivals: in order.
        router: name of a policy.
        on_run: called after each run.
    """

    def __init__(
        self,
        arrivals: Sequence[Arrival],
        slo: Slo,
        *,
        router: str = POLICIES[0],
        repeats: int = REPEATS,
        on_run: Callable[[], object] = lambda: None,
    ) -> None:
        self._arrivals = arrivals
        self._slo = slo
        self._router = router
        self._repeats = repeats
        self._on_run = on_run
        self.requests = 0

    def tune(self, found: Sequence[Candidate], replicas: Sequence[int]) -> Tuned:
        """Find the settings to use.

        Args:
            found: the measured engine first.
            replicas: numbers of them to try, in this order, up to the first with which the objectives are met.

        Raises:
            ConfigError: an objective about latencies that the traffic does not have.
        """
        if all(each.output_tokens == 1 for each in self._arrivals):
            _refuse([each.figure for each in self._slo.objectives if each.figure.metric in ("itl", "tpot")])
        outcomes: list[CandidateOutcome] = []
        for count in replicas:
            last = self._finalists(found, count)
            ordered = sorted(last, key=lambda each: each.excess)
            outcomes = [*ordered, *outcomes]
            measured = next(each for each in last if each.candidate is found[0])
            pick = simplest(ordered)
            if pick.is_met:
                break
        tried = len(found) * (list(replicas).index(pick.replicas) + 1)
        return Tuned(pick, tuple(outcomes), measured, tried, self.requests)

    def _finalists(self, found: Sequence[Candidate], replicas: int) -> list[CandidateOutcome]:
        """Return the repeated runs of the best candidates, and of the first."""
        first, left = found[0], list(found)
        sizes = round_sizes(len(self._arrivals))
        for number, size in enumerate(sizes):
            is_last = number == len(sizes) - 1
            keep = FINALISTS if is_last else max(FINALISTS, math.ceil(len(left) * KEPT_SHARE))
            left = self._best(left, busiest(self._arrivals, size), keep, replicas)
        return [self._repeat(each, replicas) for each in (*left, *(() if first in left else (first,)))]

    def _best(
        self, found: Sequence[Candidate], arrivals: Sequence[Arrival], keep: int, replicas: int
    ) -> list[Candidate]:
        """Return the `keep` best candidates, best first. Of those that do not differ on the whole traffic, the one with
        the fewest settings is kept."""
        counts = Counts(arrivals)
        whole: list[Mapping[Figure, float]] = []
        found = sorted(found, key=lambda each: len(each.settings))
        best: list[tuple[float, int]] = []
        for index, candidate in enumerate(found):
            limit = best[keep - 1][0] if len(best) >= keep else math.inf
            values = self._run(candidate, arrivals, counts, replicas, seed=0, limit=limit)
            if values is None or (len(arrivals) == len(self._arrivals) and values in whole):
                continue
            whole.append(values)
            insort(best, (self._slo.excess(values), index))
        return [found[index] for _, index in best[:keep]]

    def _repeat(self, candidate: Candidate, replicas: int) -> CandidateOutcome:
        counts, bounds = Counts(self._arrivals), Counter[Bound]()
        runs = []
        for seed in range(self._repeats):
            values = self._run(candidate, self._arrivals, counts, replicas, seed=seed, bounds=bounds)
            assert values is not None, "a run without a limit was abandoned"
            runs.append(values)
        shares = {bound: count / bounds.total() for bound, count in bounds.most_common()}
        shares.pop(Bound.NOTHING, None)
        return CandidateOutcome(candidate, replicas, tuple(runs), self._slo, shares)

    def _run(
        self,
        candidate: Candidate,
        arrivals: Sequence[Arrival],
        counts: Counts,
        replicas: int,
        *,
        seed: int,
        limit: float = math.inf,
        bounds: Counter[Bound] | None = None,
    ) -> dict[Figure, float] | None:
        """Return the figures of a run; None: it would exceed its objectives by more than `limit`."""
        machine = candidate.machine
        world, setup = machine.world, machine.setup
        spec = ReplicaSpec(setup, world, replicas, machine.depth, seed, publish_every=publish_every(self._router))
        engines = []
        for index in range(replicas):
            times = spec.times(index)
            engines.append(spec.replica(index, times if bounds is None else CountedTimes(times, bounds)))
        router = sim_router(self._router, setup, replicas, seed)
        tally = SloTally(self._slo, counts, limit)
        is_hopeless = False
        for record in run(arrivals, LocalFleet(engines), router, self._count):
            tally.add(record)
            if tally.is_hopeless:
                is_hopeless = True
                break
        self._on_run()
        if is_hopeless:
            return None
        if len(arrivals) == len(self._arrivals):
            _refuse(tally.missing())
        return tally.values()

    def _count(self) -> None:
        self.requests += 1


def _refuse(missing: Sequence[Figure]) -> None:
    if missing:
        raise ConfigError(f"--slo {missing[0]}: no request of the traffic has such a latency")


def round_sizes(count: int) -> list[int]:
    """Return the numbers of requests of all rounds; the last has all."""
    sizes = [count]
    while sizes[0] // GROWTH >= LEAST_REQUESTS:
        sizes.insert(0, sizes[0] // GROWTH)
    return sizes


def busiest(arrivals: Sequence[Arrival], count: int) -> Sequence[Arrival]:
    """Return the `count` consecutive arrivals with the most tokens a second, from time 0."""
    if count >= len(arrivals):
        return arrivals
    tokens = [0]
    for each in arrivals:
        tokens.append(tokens[-1] + each.prompt.length + each.output_tokens)

    def rate(start: int) -> float:
        seconds = arrivals[start + count - 1].time - arrivals[start].time
        return (tokens[start + count] - tokens[start]) / max(seconds, 1e-9)

    start = max(range(len(arrivals) - count + 1), key=rate)
    begin = arrivals[start].time
    return [replace(each, time=each.time - begin) for each in arrivals[start : start + count]]


def simplest(ordered: Sequence[CandidateOutcome]) -> CandidateOutcome:
    """Return the outcome with the fewest settings among those that the repeats do not tell from the best one: each is
    as good in one of them at least.

    Args:
        ordered: best first.
    """
    best = ordered[0]

    def is_alike(other: CandidateOutcome) -> bool:
        pairs = zip(other.excesses, best.excesses, strict=True)
        return other.num_met >= best.num_met and any(theirs <= ours for theirs, ours in pairs)

    return min(filter(is_alike, ordered), key=lambda each: (len(each.candidate.settings), each.excess))

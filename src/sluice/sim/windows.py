"""Days of traffic from windows: short parts of the time, simulated by several processes, with confidence intervals.

The time is cut into equal strata, and a window of each is simulated, at a random place in it. Requests before a window
warm the replicas up, and requests behind it keep them busy until its own have ended; only its own are counted.
Intervals come from drawing windows with replacement (Efron, "Bootstrap Methods: Another Look at the Jackknife", 1979).
They see only what the windows differ by, so from few windows they are too narrow: rare events are in none of them.
"""

from __future__ import annotations

import math
import random
from bisect import bisect_left
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from itertools import islice, pairwise
from typing import NamedTuple

from sluice.bench.metrics import e2e, ttft
from sluice.bench.records import Record
from sluice.config import ConfigError
from sluice.sim.fleet import LocalFleet
from sluice.sim.machine import Machine
from sluice.sim.routers import Router, in_turn
from sluice.sim.simulate import replicas_of, run
from sluice.sim.workload import Arrival

RESOLUTION = 1.01
"""Ratio of the ends of a bin: percentiles are right to half a percent."""
DRAWS = 400
CONFIDENCE = 0.95
QUANTILES = (0.5, 0.95, 0.99)
METRICS = ("TTFT", "ITL", "end to end")
FEW = 30
"""Windows, below which the intervals are noted to be too narrow."""

Between = Callable[[float, float], Iterable[Arrival]]
"""Returns the arrivals from one time on and before another, in order. What it returns can be sent to a process. Later
calls are about later times, which may overlap those of earlier ones."""
NewRouter = Callable[[], Router]


@dataclass(frozen=True, slots=True, kw_only=True)
class WindowOptions:
    """Which part of the time is simulated.

    Raises:
        ConfigError: a value that makes no windows.
    """

    windows: int
    seconds: float
    warm_up: float = 60.0
    """Seconds before and behind a window."""
    processes: int = 1
    epoch: float = 0.0
    """Seconds after which a router sees the replicas again; 0: at each request. Between these moments replicas run on
    their own, and leap."""
    seed: int = 0

    def __post_init__(self) -> None:
        if self.windows < 2:
            raise ConfigError(f"--windows must be at least 2, got {self.windows}: one says nothing of its own error")
        if not 0 < self.seconds < math.inf or not 0 <= self.warm_up < math.inf or not 0 <= self.epoch < math.inf:
            raise ConfigError(
                f"a window must last more than 0 s, got {self.seconds}; warm-up and epoch at least 0, got"
                f" {self.warm_up} and {self.epoch}"
            )
        if self.processes < 1:
            raise ConfigError(f"--processes must be at least 1, got {self.processes}")


class LatencyHistogram:
    """Counts latencies in bins that are about `RESOLUTION` wide."""

    def __init__(self) -> None:
        self.counts: Counter[int] = Counter()
        self.total = 0.0
        self.count = 0

    def add(self, seconds: float) -> None:
        self.counts[_bin(seconds)] += 1
        self.total += seconds
        self.count += 1

    def merge(self, other: LatencyHistogram) -> None:
        self.counts.update(other.counts)
        self.total += other.total
        self.count += other.count

    def mean(self) -> float:
        """Return the mean; not a number if there are no values."""
        return self.total / self.count if self.count else math.nan

    def quantiles(self) -> list[float]:
        """Return the middles of the bins of `QUANTILES`; not numbers if there are no values."""
        found, seen, due = list[float](), 0, [share * self.count for share in QUANTILES]
        for place, count in sorted(self.counts.items()):
            seen += count
            while len(found) < len(due) and seen >= due[len(found)] and seen:
                found.append(RESOLUTION ** (place + 0.5) if place > -LOWEST else 0.0)
        return found or [math.nan] * len(due)


LOWEST = 2000


def _bin(seconds: float) -> int:
    return max(-LOWEST, math.floor(math.log(seconds) / math.log(RESOLUTION))) if seconds > 0 else -LOWEST


@dataclass(slots=True)
class WindowResult:
    """What was counted in one window."""

    start: float
    requests: int = 0
    failed: int = 0
    tokens: int = 0
    simulated: int = 0
    """Requests, those before and behind the window too."""
    latencies: dict[str, LatencyHistogram] = field(
        default_factory=lambda: {name: LatencyHistogram() for name in METRICS}
    )

    def add(self, record: Record) -> None:
        """Count a request of the window."""
        self.requests += 1
        self.failed += record.failed
        self.tokens += record.num_tokens
        for name, value in (("TTFT", ttft(record)), ("end to end", e2e(record))):
            if value is not None:
                self.latencies[name].add(value)
        itl = self.latencies["ITL"]
        for (before, _), (after, tokens) in pairwise(record.arrivals):
            itl.add(after - before)
            for _ in range(tokens - 1):
                itl.add(0.0)


class WindowEstimate(NamedTuple):
    """A figure of the whole time."""

    name: str
    value: float
    low: float
    high: float
    """Ends of the interval at `CONFIDENCE`."""


class Job(NamedTuple):
    """A window to be simulated."""

    machine: Machine
    replicas: int
    new_router: NewRouter
    options: WindowOptions
    start: float
    arrivals: Iterable[Arrival]
    publish_every: float = 0.0


def between(arrivals: Sequence[Arrival], start: float, end: float) -> Sequence[Arrival]:
    """Return the part of a workload that is in memory (see `Between`)."""
    first, last = (bisect_left(arrivals, moment, key=lambda arrival: arrival.time) for moment in (start, end))
    return arrivals[first:last]


def simulate_windows(
    source: Between,
    span: float,
    machine: Machine,
    options: WindowOptions,
    *,
    replicas: int = 1,
    new_router: NewRouter | None = None,
    publish_every: float = 0.0,
    on_end: Callable[[], object] = lambda: None,
) -> list[WindowResult]:
    """Simulate one window of each stratum.

    Args:
        source: the arrivals; called in this process.
        span: seconds of the whole time.
        new_router: makes a router for a window; sent to a process. None: one replica after the other.
        publish_every: of the replicas (see `ReplicaSpec`).
        on_end: called when a window is over.

    Raises:
        ConfigError: the windows do not fit into the time, or no request is in any.
    """
    length = span / options.windows
    if options.seconds > length:
        raise ConfigError(f"{options.windows} windows of {options.seconds:g} s do not fit into {span:g} s")
    rng = random.Random(options.seed)
    starts = [stratum * length + rng.random() * (length - options.seconds) for stratum in range(options.windows)]
    jobs = (
        Job(
            machine,
            replicas,
            new_router or partial(in_turn, replicas),
            options,
            start,
            source(max(0.0, start - options.warm_up), start + options.seconds + options.warm_up),
            publish_every,
        )
        for start in starts
    )
    found = []
    for result in _results(jobs, options.processes):
        found.append(result)
        on_end()
    if not any(result.requests for result in found):
        raise ConfigError("no request arrives in any window")
    return found


def _results(jobs: Iterator[Job], processes: int) -> Iterator[WindowResult]:
    if processes == 1:
        yield from map(simulate_window, jobs)
        return
    with ProcessPoolExecutor(processes) as pool:
        begun = deque(pool.submit(simulate_window, job) for job in islice(jobs, 2 * processes))
        while begun:
            yield begun.popleft().result()
            begun.extend(pool.submit(simulate_window, job) for job in islice(jobs, 1))


def simulate_window(job: Job) -> WindowResult:
    """Simulate one window, with what precedes and follows it."""
    options, machine = job.options, job.machine
    result, end = WindowResult(job.start), job.start + options.seconds
    arrivals = _nonempty(job.arrivals)
    if arrivals is None:
        return result
    engines = replicas_of(
        machine.setup,
        machine.world,
        job.replicas,
        depth=machine.depth,
        seed=options.seed + round(job.start),
        publish_every=job.publish_every,
    )
    for record in run(arrivals, LocalFleet(engines), job.new_router(), epoch=options.epoch):
        result.simulated += 1
        if job.start <= record.due < end:
            result.add(record)
    return result


def _nonempty(arrivals: Iterable[Arrival]) -> Iterable[Arrival] | None:
    return arrivals if next(iter(arrivals), None) is not None else None


def estimates(results: Sequence[WindowResult], seconds: float, seed: int = 0) -> list[WindowEstimate]:
    """Return figures of the whole time, in seconds and a second, with their intervals; not numbers where no request has
    such a latency.

    Args:
        seconds: of a window.
    """
    rng = random.Random(seed)
    value = _figures(results, seconds)
    drawn = [_figures(rng.choices(results, k=len(results)), seconds) for _ in range(DRAWS)]
    found = []
    for name, of_all in value.items():
        values = sorted(each[name] for each in drawn if not math.isnan(each[name])) or [math.nan]
        edge = round((1 - CONFIDENCE) / 2 * len(values))
        found.append(WindowEstimate(name, of_all, values[edge], values[-1 - edge]))
    return found


def _figures(results: Sequence[WindowResult], seconds: float) -> dict[str, float]:
    time = seconds * len(results)
    found = {
        "requests/s": sum(result.requests for result in results) / time,
        "output tokens/s": sum(result.tokens for result in results) / time,
        "failed": sum(result.failed for result in results) / max(1, sum(result.requests for result in results)),
    }
    for name in METRICS:
        merged = LatencyHistogram()
        for result in results:
            merged.merge(result.latencies[name])
        found[f"{name} mean"] = merged.mean()
        for share, value in zip(QUANTILES, merged.quantiles(), strict=True):
            found[f"{name} p{100 * share:.0f}"] = value
    return found


def table(found: Sequence[WindowEstimate], results: Sequence[WindowResult]) -> str:
    """Return the figures as text."""
    counted, simulated = (sum(getattr(each, name) for each in results) for name in ("requests", "simulated"))
    lines = [
        f"{counted} requests in {len(results)} windows, {simulated} simulated; intervals at {100 * CONFIDENCE:.0f}%",
        "",
    ]
    if len(results) < FEW:
        lines.insert(1, f"note: from fewer than {FEW} windows intervals come out too narrow")
    for each in found:
        if math.isnan(each.value):
            lines.append(f"  {each.name:<18}{'none':>12}")
            continue
        is_time = each.name.split()[-1] in ("mean", "p50", "p95", "p99")
        unit, scale = ("ms", 1000) if is_time else ("%", 100) if each.name == "failed" else ("", 1)
        low, high = scale * each.low, scale * each.high
        lines.append(f"  {each.name:<18}{scale * each.value:>12.2f} {unit:<3} from {low:.2f} to {high:.2f}")
    return "\n".join(lines)


def slices_of(arrivals: Sequence[Arrival]) -> Between:
    """Return the source of a workload in memory."""
    return partial(between, arrivals)

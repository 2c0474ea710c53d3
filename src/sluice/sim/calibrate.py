"""From the trace of a real run to a model of its machine: costs that are fitted once, and residuals of its steps."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import NamedTuple

from sluice.scheduler.cost import CostPrior, StepCost
from sluice.scheduler.setup import SchedulerSetup
from sluice.sim.world import CopyRates, Residual, StepWork, World, kinds_of, work_of
from sluice.tracing.file import Line, TraceReader
from sluice.tracing.format import Abort, AdapterLoaded, Add, Compiled, Copied, Header, Loaded, Step, TraceError
from sluice.types import Regime, Tier

LEAST_STEPS = 20
"""Fewest steps that a model is fitted to."""
MOST_RATIO = 2.0
"""Largest ratio of measured and modelled time."""


class Timed(NamedTuple):
    """A step of a real run."""

    work: StepWork
    seconds: float
    gap: float | None
    """Seconds to the next planning; None: the engine had nothing to do then."""


@dataclass(slots=True)
class Observed:
    """What a trace says of its machine."""

    steps: list[Timed]
    intakes: list[float]
    """Seconds from the arrival of requests to when an idle engine took them."""
    disk: list[tuple[int, float]]
    """Pages of copies with the disk that one report ended, and the seconds that they took."""


class Fit(NamedTuple):
    """A model of a machine, and how well it fits what it was made from."""

    world: World
    steps: Mapping[Regime, int]
    """Steps of each kind that it was fitted to."""
    error: float
    """Median of the relative errors of steps without their residuals."""


def calibrate(trace: TraceReader) -> Fit:
    """Fit a model to a whole trace.

    Raises:
        TraceError: the file is broken, or holds too few steps.
    """
    return fit(observe(trace.header, trace), trace.header.setup)


def observe(header: Header, lines: Iterable[Line]) -> Observed:
    """Return the times in a trace.

    Raises:
        TraceError: the file is broken.
    """
    steps: list[Step] = []
    busy: list[bool] = []
    open_requests: set[int] = set()
    found = Observed([], [], [])
    began: dict[int, float] = {}
    for line in lines:
        record = line.record
        match record:
            case Add(refused=None):
                if not open_requests and record.arrived_at is not None:
                    found.intakes.append(max(0.0, record.at - record.arrived_at))
                open_requests.add(record.request_id)
            case Copied():
                starts = [began.pop(copy.ticket) for copy in record.done if copy.ticket in began]
                if starts:
                    found.disk.append((len(starts), max(0.0, record.at - min(starts))))
        if isinstance(record, Step | Abort | Copied | Loaded | Compiled | AdapterLoaded):
            open_requests.difference_update(end.request_id for end in record.ends)
        if isinstance(record, Step) and record.ended_at is not None and record.launched_at is not None:
            steps.append(record)
            busy.append(bool(open_requests))
            for copy in record.plan.copies:
                if Tier.DISK in (copy.source, copy.target):
                    began[copy.ticket] = record.launched_at
    found.steps = list(_timed(header, steps, busy))
    return found


def _timed(header: Header, steps: list[Step], busy: list[bool]) -> Iterator[Timed]:
    """Yield the steps that computed something.

    Args:
        busy: whether requests were left after each step.
    """
    before = 0.0
    for index, step in enumerate(steps):
        assert step.ended_at is not None
        seconds, before = step.ended_at - max(before, step.planned_at), step.ended_at
        following = steps[index + header.depth] if index + header.depth < len(steps) else None
        gap = None if following is None or not busy[index] else max(0.0, following.planned_at - step.ended_at)
        if step.error is None and seconds > 0 and (step.plan.chunks or step.plan.slices):
            yield Timed(work_of(step.plan, header.setup), seconds, gap)


def fit(observed: Observed, setup: SchedulerSetup) -> Fit:
    """Fit a model to the times of a real run.

    Raises:
        TraceError: too few steps.
    """
    steps = observed.steps
    if len(steps) < LEAST_STEPS:
        raise TraceError(f"{len(steps)} steps are too few to fit a model to; at least {LEAST_STEPS} are needed")
    seen = Counter(step.work.regime for step in steps)
    costs = _costs(steps, CostPrior() if setup.pacing is None else setup.pacing.prior)
    gaps = [step.gap for step in steps if step.gap is not None]
    bare = World(costs)
    modelled = [bare.modelled(step.work) for step in steps]
    world = World(
        costs,
        tuple(_residual(step, seconds) for step, seconds in zip(steps, modelled, strict=True)),
        gap=median(gaps) if gaps else 0.0,
        intake=median(observed.intakes) if observed.intakes else 0.0,
        copies=_rates(observed.disk, setup.page_size),
    )
    error = median(abs(seconds / step.seconds - 1) for step, seconds in zip(steps, modelled, strict=True))
    return Fit(world, {regime: seen[regime] for regime in Regime}, error)


def _costs(steps: Sequence[Timed], prior: CostPrior) -> dict[Regime, tuple[float, ...]]:
    """Return the costs of each kind of steps. A kind of which few were measured has those of a fit to the steps of the
    kind with the same kernels, too."""
    kinds = kinds_of(step.work.regime for step in steps)
    whole = _learnt([(step.work.regime, step) for step in steps], prior)
    found: dict[Regime, tuple[float, ...]] = {}
    for regime in Regime:
        if regime not in kinds[regime]:
            continue
        own = [step for step in steps if step.work.regime in kinds[regime]]
        cost = whole if kinds[regime] == (regime,) else _learnt([(regime, step) for step in own], prior)
        found[regime] = _scaled(cost.costs(regime), own)
    return {regime: found[regime] if regime in found else found[kinds[regime][0]] for regime in Regime}


def _learnt(steps: Iterable[tuple[Regime, Timed]], prior: CostPrior) -> StepCost:
    """Return what steps show that are taken for these kinds."""
    cost = StepCost(prior, decay=1.0)
    for regime, step in steps:
        cost.observe(regime, step.work.load, 1e6 * step.seconds)
    return cost


def _scaled(costs: tuple[float, ...], steps: Iterable[Timed]) -> tuple[float, ...]:
    """Return fitted costs at which half of the steps take longer: relative errors, which the fit minimises, favour the
    fastest steps."""
    fitted = World(dict.fromkeys(Regime, costs))
    ratio = median(step.seconds / fitted.modelled(step.work) for step in steps)
    return tuple(ratio * each for each in costs)


def _residual(step: Timed, modelled: float) -> Residual:
    """Return what a step took beside what is modelled. What is more than `MOST_RATIO` times that was no slower
    computing but a pause, which would be as long in a larger step."""
    ratio = min(step.seconds / modelled, MOST_RATIO)
    return Residual(step.work.regime, ratio, step.gap, max(0.0, step.seconds - ratio * modelled))


def _rates(disk: list[tuple[int, float]], page_size: int) -> CopyRates:
    """Return the line through the times of small and of large copies; what is usual if there are none."""
    if not disk:
        return CopyRates()
    ordered = sorted(disk)
    half = len(ordered) // 2 or 1
    small, large = ordered[:half], ordered[-half:]
    (fewer, less), (more, longer) = ((_mean(p for p, _ in part), _mean(s for _, s in part)) for part in (small, large))
    page = max(0.0, (longer - less) / (more - fewer)) if more > fewer else less / fewer
    return CopyRates(latency=max(0.0, less - page * fewer), token=page / page_size)


def _mean(values: Iterable[float]) -> float:
    found = list(values)
    return sum(found) / len(found)

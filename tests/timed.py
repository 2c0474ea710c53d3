"""Engines over a machine made of numbers: its steps take virtual time by what they hold."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from sluice.engine.clock import VirtualClock, micros_at
from sluice.engine.engine import Engine
from sluice.engine.protocols import Pending, Runner
from sluice.kv.manager import KVManager
from sluice.scheduler.cost import StepLoad
from sluice.scheduler.pacer import Pacing
from sluice.scheduler.scheduler import Scheduler
from sluice.testing import ManualLink, ShadowRunner, resolved
from sluice.types import BatchPlan, SchedulerLimits, Submit

PAGE = 32
MACHINE = (20_000.0, 900.0, 150.0, 0.2, 0.4, 0.001, 0.0)
"""Microseconds of a step, a token, a row, a key, a pair and a byte: some 1,000 tokens of prefill a second."""


class Taken(NamedTuple):
    """A step that ran."""

    plan: BatchPlan
    micros: float

    @property
    def prefill(self) -> int:
        """Its tokens of prompts."""
        return self.plan.num_tokens - self.plan.num_decodes

    @property
    def is_mixed(self) -> bool:
        return self.plan.num_decodes > 0 and self.prefill > 0


def load_of(plan: BatchPlan) -> StepLoad:
    """Count a plan's work, as the scheduler should have counted it."""
    decodes = plan.chunks[: plan.num_decodes]
    load = StepLoad(len(decodes), len(decodes), sum(chunk.end for chunk in decodes))
    for chunk in plan.chunks[plan.num_decodes : len(plan.chunks) - sum(part.completes for part in plan.slices)]:
        load = load.with_chunk(chunk.start, chunk.length)
    return load


def load_of_slices(plan: BatchPlan) -> StepLoad:
    """Count the work on layers of chunks."""
    load = StepLoad()
    for part in plan.slices:
        share = (part.stop - part.first) / part.total
        whole = StepLoad().with_chunk(part.chunk.start, part.chunk.length)
        load = load.plus(StepLoad(*(share * each for each in whole)))
    return load


@dataclass
class TimedRunner:
    """Takes the time of a machine for each step."""

    inner: Runner
    clock: VirtualClock
    time: Callable[[BatchPlan], float]
    steps: list[Taken] = field(default_factory=list)

    def launch(self, plan: BatchPlan) -> Pending:
        micros = self.time(plan)
        self.clock.advance(micros / 1e6)
        self.steps.append(Taken(plan, micros))
        return self.inner.launch(plan)

    def close(self) -> None:
        self.inner.close()


def time_of(plan: BatchPlan, machine: tuple[float, ...] = MACHINE) -> float:
    """Return the microseconds of a step on a machine."""
    step, *rest = machine
    return step + sum(cost * count for cost, count in zip(rest, load_of(plan), strict=True))


@dataclass
class Timed:
    """An engine with an ITL target over a machine."""

    limits: SchedulerLimits
    time: Callable[[BatchPlan], float] = time_of
    pacing: Pacing | None = None
    num_pages: int = 2000

    def __post_init__(self) -> None:
        self.clock, self.link = VirtualClock(), ManualLink()
        self.runner = TimedRunner(ShadowRunner(page_size=PAGE, vocab_size=2), self.clock, self.time)
        kv = KVManager(num_pages=self.num_pages, page_size=PAGE, prefix_caching=False)
        self.scheduler = Scheduler(self.limits, kv, pacing=self.pacing)
        self.engine = Engine(self.scheduler, self.runner, self.link, clock=self.clock)
        self._ids = 0

    def ask(self, prompt: int, outputs: int, *, itl_target: int = 0, priority_class: str = "") -> int:
        """Send a request that arrives now. Returns its id."""
        self._ids += 1
        submit = Submit(self._ids, (1,) * prompt, resolved(outputs), priority_class=priority_class)
        self.link.put(replace(submit, itl_target=itl_target, arrived=micros_at(self.clock.now())))
        return self._ids

    def run(self, steps: int = 10**6) -> list[Taken]:
        """Step so often, or until nothing is left to do. Returns the steps."""
        before = len(self.runner.steps)
        self.engine.step()
        while not self.engine.is_idle and len(self.runner.steps) - before < steps:
            self.engine.step()
        return self.runner.steps[before:]

"""How long the stages of a pipeline wait for each other, in virtual time: fixed chunks and chunks of equal time.

    python -m benchmarks.pipeline_bubbles --json FILE --svg FILE

The engine and its scheduler are those that serve. The runner computes nothing: it lets each stage take its share of
what a machine's costs say of the step, after the stage before has ended and after its own step before. So the figures
are about the order and the size of steps alone; sending between stages takes no time. The scheduler is not told the
costs: it learns them from the stages' times, beginning with a ratio that is off by two.
"""

from __future__ import annotations

import argparse
import itertools
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import NamedTuple

from benchmarks.bubbles_plot import bubbles_plot
from benchmarks.written import show
from sluice.engine.clock import VirtualClock
from sluice.engine.engine import Engine
from sluice.scheduler.cost import CostPrior, dot
from sluice.scheduler.pacer import Pacing
from sluice.scheduler.setup import SchedulerSetup
from sluice.sim.world import work_of
from sluice.testing import ManualLink, resolved
from sluice.types import CHUNKS_BY_TIME, BatchPlan, BatchResult, SchedulerLimits, Submit

PAGE = 64
PROMPT = 131_072
PROMPTS = 3
STREAMS = (64, 256)
"""The first number of them beside prompts."""
CONTEXT = 60
"""Short, so that all streams are admitted in one step."""
OUTPUTS = 30_000
STAGES = (2, 4, 8)


class Costs(NamedTuple):
    """Microseconds of a whole model's step, token, row, key, pair and byte, and the chunk size that suits them."""

    values: tuple[float, ...]
    chunk: int
    source: str


MACHINES = {
    "0.6B on a CPU": Costs(
        (13_700.0, 1104.0, 400.0, 2.5, 0.328, 0.0),
        512,
        "measured for Qwen3-0.6B's shape on two cores (benchmarks/results/cpu_steps.json)",
    ),
    "8B on a GPU": Costs(
        (4_000.0, 21.0, 5.0, 0.03, 0.00131, 0.0),
        4096,
        "estimated for Llama-3-8B on an H200: 16 GB of weights at 4 TB/s, 14 GFLOP a token at 700 TFLOP/s, and 0.5"
        " MFLOP a pair at 400 TFLOP/s",
    ),
}


class Busy(NamedTuple):
    """When a stage computed a step, in seconds."""

    start: float
    end: float


@dataclass(slots=True)
class PipelineStep:
    """A launched step."""

    runner: PipelineRunner
    plan: BatchPlan
    busy: tuple[Busy, ...]

    def wait(self) -> BatchResult:
        """Let time pass until the last stage is done."""
        self.runner.clock.advance(max(0.0, self.busy[-1].end - self.runner.clock.now()))
        tokens = ((1,),) * sum(chunk.samples for chunk in self.plan.chunks)
        micros = tuple(round((each.end - each.start) * 1e6) for each in self.busy)
        return BatchResult(self.plan.step, tokens, stage_micros=micros)


@dataclass
class PipelineRunner:
    """A pipeline of stages that hold equal parts of a model.

    Args:
        costs: microseconds, as of `Costs`.
    """

    clock: VirtualClock
    costs: Sequence[float]
    setup: SchedulerSetup
    num_stages: int
    steps: list[PipelineStep] = field(default_factory=list)

    def launch(self, plan: BatchPlan) -> PipelineStep:
        seconds = dot(self.costs, (1, *work_of(plan, self.setup).load)) / self.num_stages / 1e6
        ready, busy = self.clock.now(), []
        for stage in range(self.num_stages):
            start = max(ready, self.steps[-1].busy[stage].end) if self.steps else ready
            ready = start + seconds
            busy.append(Busy(start, ready))
        self.steps.append(PipelineStep(self, plan, tuple(busy)))
        return self.steps[-1]

    def close(self) -> None:
        """Return: nothing is open."""


@dataclass(frozen=True)
class Way:
    """How prompts are cut."""

    name: str
    dynamic: bool = False
    smoothing: float = 1.0
    turns: bool = True
    """Whether decodes take turns."""


WAYS = (
    Way("fixed, decodes together", turns=False),
    Way("fixed"),
    Way("equal time, smoothing 0.75", dynamic=True, smoothing=0.75),
    Way("equal time", dynamic=True),
)


def setup_of(costs: Costs, way: Way, stages: int, streams: int) -> SchedulerSetup:
    """Return a scheduler's setup, whose prior is off."""
    limits = SchedulerLimits(
        "mixed",
        costs.chunk,
        costs.chunk + streams + 1 + PAGE,
        streams + 1,
        dynamic_chunking=CHUNKS_BY_TIME if way.dynamic else 0,
        dynamic_chunking_smoothing=way.smoothing,
        pipeline_stages=stages if way.turns else 1,
        conservativeness=0.0,
    )
    step, token, row, key, pair, _ = costs.values
    prior = CostPrior(step, token, row, key, 2 * pair)
    pages = 2 * (PROMPT + streams * (CONTEXT + OUTPUTS)) // PAGE
    return SchedulerSetup(limits, pages, PAGE, prefix_caching=False, pacing=Pacing(prior))


class Serving:
    """An engine over a pipeline, and streams that were admitted in one step."""

    def __init__(self, costs: Costs, way: Way, stages: int, streams: int) -> None:
        clock = VirtualClock()
        self.link = ManualLink()
        setup = setup_of(costs, way, stages, streams)
        self.runner = PipelineRunner(clock, costs.values, setup, stages)
        self.scheduler = setup.build()
        self.engine = Engine(self.scheduler, self.runner, self.link, depth=stages + 1, clock=clock)
        self.link.put(*(Submit(each, (1,) * CONTEXT, resolved(OUTPUTS)) for each in range(streams)))
        self._streams = streams
        self.alone = self._run(10 * stages, 40 * stages)
        """Steps of streams without prompts."""

    def _run(self, first: int, last: int) -> list[PipelineStep]:
        while len(self.runner.steps) < last:
            self.engine.step()
        return self.runner.steps[first:last]

    def beside_prompts(self) -> list[PipelineStep]:
        """Serve prompts beside the streams, one after the other. Returns the steps from the first prompt's first chunk
        to the last prompt's last one."""
        streams, steps = self._streams, self.runner.steps
        self.link.put(*(Submit(streams + each, (1,) * PROMPT, resolved(1)) for each in range(PROMPTS)))
        self.engine.step()
        while any(each >= streams for each in self.scheduler.state.requests):
            self.engine.step()
        beside = [any(chunk.request_id >= streams for chunk in step.plan.chunks) for step in steps]
        return steps[beside.index(True) : len(beside) - beside[::-1].index(True)]


def figures_of(steps: Sequence[PipelineStep]) -> dict[str, float]:
    """Return what is shown of some consecutive steps: the share of the stages' time in which they wait between their
    first step and their last, and what streams see."""
    stages = range(len(steps[0].busy))
    spans = [steps[-1].busy[stage].end - steps[0].busy[stage].start for stage in stages]
    waits = [spans[stage] - sum(step.busy[stage].end - step.busy[stage].start for step in steps) for stage in stages]
    times = [step.busy[0].end - step.busy[0].start for step in steps]
    ends: dict[int, list[float]] = {}
    for step in steps:
        for chunk in step.plan.chunks[: step.plan.num_decodes]:
            ends.setdefault(chunk.request_id, []).append(step.busy[-1].end)
    gaps = sorted(later - earlier for each in ends.values() for earlier, later in itertools.pairwise(each))
    counts, settled = [step.plan.num_decodes for step in steps], 2 * len(stages) + 2
    return {
        "bubbles": sum(waits) / sum(spans),
        "seconds": steps[-1].busy[-1].end - steps[0].busy[0].start,
        "steps": len(steps),
        "longest_over_median_step": max(times) / median(times),
        "fewest_decodes": min(counts[settled:-settled]),
        "most_decodes": max(counts[settled:-settled]),
        "itl_p50": gaps[len(gaps) // 2] if gaps else 0.0,
        "itl_p99": gaps[len(gaps) * 99 // 100] if gaps else 0.0,
        "tokens_per_second": sum(counts) / (steps[-1].busy[-1].end - steps[0].busy[0].start),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description="How long the stages of a pipeline wait for each other.")
    parser.add_argument("--json", type=Path, help="file for the figures")
    parser.add_argument("--svg", type=Path, help="file for the plot")
    parser.add_argument("--stages", type=int, nargs="+", default=STAGES)
    arguments = parser.parse_args()
    found: dict[str, dict[str, dict[str, dict[str, float]]]] = {}
    alone: dict[str, dict[str, dict[str, dict[str, float]]]] = {}
    for machine, costs in MACHINES.items():
        for stages in arguments.stages:
            for way in WAYS:
                serving = Serving(costs, way, stages, STREAMS[0])
                figures = figures_of(serving.beside_prompts())
                figures["seconds_per_prompt"] = figures.pop("seconds") / PROMPTS
                found.setdefault(machine, {}).setdefault(str(stages), {})[way.name] = figures
                for streams in () if way.dynamic else STREAMS:
                    of_alone = figures_of(Serving(costs, way, stages, streams).alone)
                    alone.setdefault(f"{streams} streams", {}).setdefault(str(stages), {})[way.name] = of_alone
    machines = {name: each._asdict() for name, each in MACHINES.items()}
    show({"machines": machines, "beside_prompts": found, "streams_alone": alone}, arguments.json)
    if arguments.svg is not None:
        machine, by_stages = list(found.items())[-1]
        shares = {stages: {way: each["bubbles"] for way, each in ways.items()} for stages, ways in by_stages.items()}
        title = f"Time in which stages wait: prompts of 128K tokens beside {STREAMS[0]} streams, {machine}"
        arguments.svg.write_text(bubbles_plot(shares, title), encoding="utf-8")


if __name__ == "__main__":
    main()

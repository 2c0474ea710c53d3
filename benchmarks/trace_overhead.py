"""Measure what a trace costs: steps a second with and without it, in turns (A B A B), and microseconds a step.

    python benchmarks/trace_overhead.py --json overhead.json

The real engine, scheduler and recorder write a real file, over a runner that spends a fixed time on every step and
returns an arbitrary token. The loss of throughput is that of an engine with steps of this length (`--step-ms`).
"""

from __future__ import annotations

import argparse
import gc
import json
import statistics
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from sluice.engine.clock import WallClock
from sluice.engine.engine import Engine
from sluice.engine.messages import Submit
from sluice.engine.trace import RecentSteps
from sluice.scheduler.setup import SchedulerSetup
from sluice.testing import ManualLink, resolved
from sluice.tracing.file import TraceFile, create
from sluice.tracing.format import VERSION, Header
from sluice.tracing.recorder import Recorder
from sluice.types import BatchPlan, BatchResult, SchedulerLimits

PROMPT_TOKENS = 200
OUTPUT_TOKENS = 100
PAGE_SIZE = 32


class SteadyStep:
    """A step that was computed at launch, as on a CPU."""

    def __init__(self, result: BatchResult) -> None:
        self._result = result

    def wait(self) -> BatchResult:
        return self._result


class SteadyRunner:
    """A runner whose steps take `seconds` of processor time."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds

    def launch(self, plan: BatchPlan) -> SteadyStep:
        until = time.perf_counter() + self._seconds
        result = BatchResult(plan.step, tuple((plan.step % 50_000,) for chunk in plan.chunks if chunk.samples))
        while time.perf_counter() < until:
            pass
        return SteadyStep(result)

    def close(self) -> None:
        """Return: nothing is open."""


class CountingLink(ManualLink):
    """A link that drops the outputs."""

    def send(self, outputs: Sequence[object]) -> None:
        pass


@dataclass(frozen=True)
class Load:
    running: int
    step_seconds: float
    requests: int


def setup_of(load: Load) -> SchedulerSetup:
    pages = -(-(PROMPT_TOKENS + OUTPUT_TOKENS) // PAGE_SIZE) * (load.running + 2)
    limits = SchedulerLimits("mixed", 512, 512 + load.running, load.running, max_partial_prefills=4)
    return SchedulerSetup(limits, num_pages=pages, page_size=PAGE_SIZE)


def engine_of(load: Load, path: Path | None) -> Engine:
    setup, clock, trace = setup_of(load), WallClock(), RecentSteps()
    runner, link = SteadyRunner(load.step_seconds), CountingLink()
    if path is None:
        return Engine(setup.build(), runner, link, clock=clock, trace=trace)
    create(path)
    header = Header(version=VERSION, sluice="", model="", token_ids=True, setup=setup, depth=1, unix_time=0.0)
    recorder = Recorder(setup.build(), trace, TraceFile(path, header, key=b""), clock, start=clock.now())
    return Engine(recorder, runner, link, clock=clock, trace=recorder)


def seconds_a_step(load: Load, path: Path | None) -> float:
    """Run the whole load once. No two prompts are alike, and all requests have as many tokens."""
    engine = engine_of(load, path)
    link = engine.link
    assert isinstance(link, ManualLink)
    link.put(
        *(
            Submit(index, tuple(index * 7 + position for position in range(PROMPT_TOKENS)), resolved(OUTPUT_TOKENS))
            for index in range(load.requests)
        )
    )
    gc.collect()
    start = time.perf_counter()
    engine.step()
    while not engine.is_idle:
        engine.step()
    engine.close()
    elapsed = time.perf_counter() - start
    latest = engine.trace.latest
    assert latest is not None
    return elapsed / (latest.step + 1)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--running", type=int, default=64, help="requests at a time")
    parser.add_argument("--requests", type=int, default=128, help="requests in all")
    parser.add_argument("--step-ms", type=float, default=5.0, help="time of a step in the runner")
    parser.add_argument("--repeats", type=int, default=4, help="runs of each kind")
    parser.add_argument("--json", type=Path, help="write the figures here")
    args = parser.parse_args()
    load = Load(args.running, args.step_ms / 1000, args.requests)
    without: list[float] = []
    traced: list[float] = []
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "trace.jsonl"
        for _ in range(args.repeats):
            without.append(seconds_a_step(load, None))
            traced.append(seconds_a_step(load, path))
        lines = path.read_bytes().splitlines()
        size = path.stat().st_size
    plain, slow = statistics.median(without), statistics.median(traced)
    figures = {
        "running": load.running,
        "step_ms": args.step_ms,
        "repeats": args.repeats,
        "us_per_step_without": plain * 1e6,
        "us_per_step_traced": slow * 1e6,
        "throughput_ratio": plain / slow,
        "ratios": [one / other for one, other in zip(without, traced, strict=True)],
        "bytes_per_step": size / sum(b'"kind":"step"' in line for line in lines),
    }
    print(f"{load.running} running, {args.step_ms:g} ms in the runner, medians of {args.repeats} runs each, in turn")
    print(f"  without  {figures['us_per_step_without']:8.1f} us a step")
    print(f"  traced   {figures['us_per_step_traced']:8.1f} us a step: {(slow - plain) * 1e6:.1f} us more")
    print(f"  throughput with a trace: {100 * plain / slow:.2f}% ({figures['bytes_per_step']:.0f} bytes a step)")
    if args.json:
        args.json.write_text(json.dumps(figures, indent=2) + "\n")


if __name__ == "__main__":
    main()

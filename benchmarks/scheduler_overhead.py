"""Measure the scheduler: microseconds per running request per step, and the admission of a long cached prompt.

    python benchmarks/scheduler_overhead.py --json overhead.json

`us_per_request_step`: `schedule` + `commit` of steps in which every request decodes, page allocation and publication
included, page size 32, median over repeats. `admit_128k_hit_ms`: `add` + `schedule` of a prompt of 131,072 tokens of
which all but the last page is cached. `us_per_cost`: with an ITL target, the
processor time in which `StepCost` predicts and learns a step.
"""

from __future__ import annotations

import argparse
import gc
import json
import statistics
import time
from dataclasses import replace
from pathlib import Path

from sluice.kv.manager import KVManager
from sluice.scheduler.batch import BatchBuilder
from sluice.scheduler.cost import StepCost, StepLoad
from sluice.scheduler.pacer import Pacer, Pacing
from sluice.scheduler.request import Request
from sluice.scheduler.scheduler import Scheduler
from sluice.testing import resolved
from sluice.types import BatchPlan, BatchResult, Regime, SchedulerLimits, Submit

PAGE_SIZE = 32
PROMPT_TOKENS = 100
LONG_TOKENS = 131_072


def scheduler_of(running: int, num_pages: int, chunk: int = 8192) -> Scheduler:
    limits = SchedulerLimits("mixed", chunk, chunk + running, running, max_partial_prefills=4)
    return Scheduler(limits, KVManager(num_pages=num_pages, page_size=PAGE_SIZE))


def result_of(plan: BatchPlan) -> BatchResult:
    return BatchResult(plan.step, tuple((7,) for chunk in plan.chunks if chunk.samples))


def step(scheduler: Scheduler) -> None:
    plan = scheduler.schedule()
    assert plan is not None
    scheduler.commit(plan, result_of(plan))


def us_per_request_step(running: int, steps: int) -> float:
    """Run one repeat: fill the engine, then time `steps` steps of decodes only, without making their results."""
    pages = -(-(PROMPT_TOKENS + steps + 50) // PAGE_SIZE) + 1
    scheduler = scheduler_of(running, num_pages=running * pages)
    for request_id in range(running):
        scheduler.add(Submit(request_id, (request_id % 1000 + 1,) * PROMPT_TOKENS, resolved(steps + 50)))
    while len(scheduler.state.decoding) < running or scheduler.state.computing:
        step(scheduler)
    total = 0
    for _ in range(steps):
        start = time.perf_counter_ns()
        plan = scheduler.schedule()
        total += time.perf_counter_ns() - start
        assert plan is not None
        assert len(plan.chunks) == running, f"{len(plan.chunks)} of {running} requests decode"
        result = result_of(plan)
        start = time.perf_counter_ns()
        scheduler.commit(plan, result)
        total += time.perf_counter_ns() - start
    return total / steps / running / 1e3


def admit_128k_hit_ms() -> float:
    """Run one repeat: compute a prompt once, then admit it again."""
    scheduler = scheduler_of(4, num_pages=3 * LONG_TOKENS // PAGE_SIZE)
    prompt = tuple(position % 50_000 for position in range(LONG_TOKENS))
    scheduler.add(Submit(0, prompt, resolved(1)))
    while scheduler.has_work:
        step(scheduler)
    start = time.perf_counter_ns()
    scheduler.add(Submit(1, prompt, resolved(1)))
    plan = scheduler.schedule()
    elapsed = time.perf_counter_ns() - start
    assert plan is not None
    assert plan.chunks[0].start == LONG_TOKENS - PAGE_SIZE, plan.chunks[0].start
    return elapsed / 1e6


def us_per_cost(steps: int = 2000) -> float:
    """Run one repeat: predict mixed steps and learn from them, as a scheduler with an ITL target does for each."""
    cost = StepCost()
    loads = [StepLoad(8, 8, 4000 + index).with_chunk(index % 1000, 8 + index % 64) for index in range(steps)]
    start = time.process_time_ns()
    for load in loads:
        cost.predict(Regime.MIXED, load)
        cost.observe(Regime.MIXED, load, 20_000 + 900 * load.tokens)
    return (time.process_time_ns() - start) / steps / 1e3


def us_per_target(steps: int = 2000) -> float:
    """Run one repeat: ask a pacer for the prefill of mixed steps, plan what it grants, and let it learn."""
    limits = replace(scheduler_of(8, num_pages=8).limits, itl_target=50_000)
    pacer = Pacer(limits, PAGE_SIZE, Pacing())
    streams = [Request(Submit(number, (1,) * 8, resolved(8)), 0) for number in range(8)]
    start = time.process_time_ns()
    for step in range(steps):
        batch = BatchBuilder()
        batch.num_tokens = batch.num_decodes = len(streams)
        budget = pacer.budget(batch, limits, streams)
        budget.left(0)
        length = budget.cut(0, min(budget.left(step % 1000), budget.tokens_at_depth(512, 0)))
        batch.num_tokens += length
        budget.take(step % 1000, length)
        budget.left(0)
        budget.pace(step)
        pacer.ended(step, 20_000 + 900 * batch.num_tokens + step % 7)
    return (time.process_time_ns() - start) / steps / 1e3


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--running", type=int, nargs="+", default=[1, 16, 64, 256, 1024])
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--json", type=Path, help="write the figures here")
    args = parser.parse_args()
    gc.collect()
    per_request: dict[int, list[float]] = {running: [] for running in args.running}
    admissions: list[float] = []
    costs: list[float] = []
    targets: list[float] = []
    for _ in range(args.repeats):
        for running in args.running:
            per_request[running].append(us_per_request_step(running, steps=max(64, 4096 // running)))
        admissions.append(admit_128k_hit_ms())
        costs.append(us_per_cost())
        targets.append(us_per_target())
    figures = {
        "us_per_request_step": {str(running): statistics.median(values) for running, values in per_request.items()},
        "admit_128k_hit_ms": statistics.median(admissions),
        "us_per_cost": statistics.median(costs),
        "us_per_target": statistics.median(targets),
        "repeats": args.repeats,
        "page_size": PAGE_SIZE,
    }
    for running, value in figures["us_per_request_step"].items():
        print(f"{running:>5} running: {value:5.2f} us per request and step")
    print(f"admission of a cached prompt of 131,072 tokens: {figures['admit_128k_hit_ms']:.2f} ms")
    print(f"prediction and learning of a step with an ITL target: {figures['us_per_cost']:.1f} us")
    print(f"all that a target adds to a step: {figures['us_per_target']:.1f} us")
    if args.json:
        args.json.write_text(json.dumps(figures, indent=2) + "\n")


if __name__ == "__main__":
    main()

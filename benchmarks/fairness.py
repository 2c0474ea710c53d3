"""Simulate short prompts beside very long ones on a virtual clock, with the real scheduler.

    python benchmarks/fairness.py
    python benchmarks/fairness.py --partial 1 2 4 8 --seconds 600 --json fairness.json

Prompts of 100 tokens with 16 outputs arrive 10 a second (Poisson), and one prompt of 200,000 tokens every 20 s. A
step takes a fixed time and a time per token; the latter is set so that a machine that prefills one prompt after the
other is busy 80% of the time. `--mediums` adds prompts of 4,000 tokens, N a second.
"""

from __future__ import annotations

import argparse
import json
import random
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

from sluice.engine.clock import VirtualClock
from sluice.kv.manager import KVManager
from sluice.scheduler.scheduler import Scheduler
from sluice.testing import resolved
from sluice.types import BatchPlan, BatchResult, Output, SchedulerLimits, Submit

SHORT_TOKENS, SHORT_OUTPUT, SHORTS_A_SECOND = 100, 16, 10.0
MEDIUM_TOKENS, MEDIUM_OUTPUT = 4_000, 16
LONG_TOKENS, LONG_OUTPUT, LONG_EVERY = 200_000, 16, 20.0
PAGE_SIZE, BUDGET, RUNNING = 32, 512, 64
SECONDS_PER_STEP = 0.002


@dataclass(frozen=True)
class Arrival:
    at: float
    request_id: int
    tokens: int
    output: int


@dataclass
class Life:
    """The history of one request."""

    arrival: Arrival
    first_token: float = 0.0
    end: float = 0.0


@dataclass
class Run:
    lives: dict[int, Life] = field(default_factory=dict)
    longest_wait_steps: int = 0
    """Most steps in a row in which an admitted request had no token in the plan."""
    planned_at: dict[int, int] = field(default_factory=dict)
    busy: float = 0.0
    span: float = 0.0


@dataclass(frozen=True)
class Row:
    """One line of the table; times in seconds."""

    max_partial_prefills: int
    load: float
    short_ttft_p50: float
    short_ttft_p99: float
    short_ttft_max: float
    medium_ttft_mean: float
    long_end_mean: float
    long_end_max: float
    longest_wait_steps: int


@dataclass(frozen=True)
class Load:
    """The prompts that arrive, and for how long."""

    seconds: float
    mediums_a_second: float
    seed: int


def arrivals(load: Load) -> list[Arrival]:
    draw = random.Random(load.seed)
    times: list[tuple[float, int, int]] = []
    for rate, tokens, output in (
        (SHORTS_A_SECOND, SHORT_TOKENS, SHORT_OUTPUT),
        (load.mediums_a_second, MEDIUM_TOKENS, MEDIUM_OUTPUT),
    ):
        at = draw.expovariate(rate) if rate else load.seconds
        while at < load.seconds:
            times.append((at, tokens, output))
            at += draw.expovariate(rate)
    seconds = load.seconds
    times += [(1.0 + LONG_EVERY * i, LONG_TOKENS, LONG_OUTPUT) for i in range(int(seconds / LONG_EVERY))]
    return [Arrival(at, index, tokens, output) for index, (at, tokens, output) in enumerate(sorted(times))]


def seconds_per_token(load: Load, busy: float) -> float:
    """Return the time per token at which prefills keep the machine busy for this share of the time."""
    per_token = busy / 11_000
    for _ in range(6):
        run = simulate(1, load, per_token)
        per_token *= busy / (run.busy / run.span)
    return per_token


def prompt_of(arrival: Arrival) -> Sequence[int]:
    """Return a prompt that shares no prefix with another."""
    return [arrival.request_id + 1] * arrival.tokens


def simulate(partial: int, load: Load, per_token: float) -> Run:
    limits = SchedulerLimits("mixed", BUDGET, BUDGET + RUNNING, RUNNING, max_partial_prefills=partial, reserve="ratio")
    kv = KVManager(num_pages=2_000_000 // PAGE_SIZE, page_size=PAGE_SIZE)
    scheduler, clock, run = Scheduler(limits, kv), VirtualClock(), Run()
    todo: Iterator[Arrival] = iter(arrivals(load))
    coming = next(todo, None)
    while coming is not None or scheduler.has_work:
        while coming is not None and (coming.at <= clock.now() or not scheduler.has_work):
            clock.advance(max(0.0, coming.at - clock.now()))
            run.lives[coming.request_id] = Life(coming)
            scheduler.add(Submit(coming.request_id, tuple(prompt_of(coming)), resolved(coming.output)))
            coming = next(todo, None)
        plan = scheduler.schedule()
        assert plan is not None, "work, and nothing to plan"
        duration = SECONDS_PER_STEP + per_token * plan.num_tokens
        clock.advance(duration)
        run.busy += duration
        note_waits(run, scheduler, plan)
        note(run, scheduler.commit(plan, result_of(plan)), clock.now())
    run.span = clock.now()
    return run


def result_of(plan: BatchPlan) -> BatchResult:
    return BatchResult(plan.step, tuple((0,) for chunk in plan.chunks if chunk.samples))


def note_waits(run: Run, scheduler: Scheduler, plan: BatchPlan) -> None:
    for chunk in plan.chunks:
        run.planned_at[chunk.request_id] = plan.step
    for request in scheduler.state.running():
        run.longest_wait_steps = max(run.longest_wait_steps, plan.step - run.planned_at[request.id])


def note(run: Run, outputs: Sequence[Output], now: float) -> None:
    for output in outputs:
        life = run.lives[output.request_id]
        life.first_token = life.first_token or now
        if output.finish_reason is not None:
            life.end = now


def percentile(values: Sequence[float], share: float) -> float:
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


def row_of(partial: int, run: Run) -> Row:
    by_size = {
        tokens: [life for life in run.lives.values() if life.arrival.tokens == tokens]
        for tokens in (SHORT_TOKENS, MEDIUM_TOKENS, LONG_TOKENS)
    }
    shorts = [life.first_token - life.arrival.at for life in by_size[SHORT_TOKENS]]
    mediums = [life.first_token - life.arrival.at for life in by_size[MEDIUM_TOKENS]]
    longs = [life.end - life.arrival.at for life in by_size[LONG_TOKENS]]
    return Row(
        max_partial_prefills=partial,
        load=run.busy / run.span,
        short_ttft_p50=percentile(shorts, 0.5),
        short_ttft_p99=percentile(shorts, 0.99),
        short_ttft_max=max(shorts),
        medium_ttft_mean=sum(mediums) / max(1, len(mediums)),
        long_end_mean=sum(longs) / len(longs),
        long_end_max=max(longs),
        longest_wait_steps=run.longest_wait_steps,
    )


def table(rows: Sequence[Row]) -> str:
    head = ["partial prefills", "busy", "short TTFT p50", "p99", "max"]
    head += ["medium: mean TTFT", "long: mean time to end", "max", "longest wait, steps"]
    lines = [f"| {' | '.join(head)} |", "|---" * len(head) + "|"]
    for row in rows:
        cells = [f"{row.max_partial_prefills}", f"{row.load:.0%}"]
        cells += [f"{ttft * 1e3:,.0f} ms" for ttft in (row.short_ttft_p50, row.short_ttft_p99, row.short_ttft_max)]
        cells += [f"{end:.2f} s" for end in (row.medium_ttft_mean, row.long_end_mean, row.long_end_max)]
        lines.append(f"| {' | '.join(cells)} | {row.longest_wait_steps} |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--partial", type=int, nargs="+", default=[1, 2, 4, 8], help="values of max_partial_prefills")
    parser.add_argument("--seconds", type=float, default=200.0, help="length of the arrivals")
    parser.add_argument("--load", type=float, default=0.8, help="share of the time the machine is busy")
    parser.add_argument("--mediums", type=float, default=0.0, help="prompts of 4,000 tokens a second")
    parser.add_argument("--seed", type=int, default=1, help="seed of the arrivals")
    parser.add_argument("--json", type=Path, help="write the rows here, too")
    args = parser.parse_args()
    load = Load(args.seconds, args.mediums, args.seed)
    per_token = seconds_per_token(load, args.load)
    rows = [row_of(partial, simulate(partial, load, per_token)) for partial in args.partial]
    print(table(rows))
    if args.json:
        args.json.write_text(json.dumps([asdict(row) for row in rows], indent=2) + "\n")


if __name__ == "__main__":
    main()

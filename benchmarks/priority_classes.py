"""Simulate interactive requests beside a flood of batch prompts on a virtual clock, with the real scheduler.

    python benchmarks/priority_classes.py
    python benchmarks/priority_classes.py --batch-output 1000 --json classes.json

At second 0 a batch job sends 400 prompts of 4,000 tokens. For 200 s, interactive requests of 500 tokens with 32 outputs
arrive 2 a second (Poisson). A step takes 2 ms and 0.15 ms a token, so the machine prefills some 6,500 tokens a second.
"""

from __future__ import annotations

import argparse
import json
import random
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from fairness import percentile, result_of

from sluice.config.priority_classes import classes_of
from sluice.engine.clock import VirtualClock, micros_at
from sluice.kv.manager import KVManager
from sluice.scheduler.scheduler import Scheduler
from sluice.testing import resolved
from sluice.types import SchedulerLimits, Submit

BATCHES, BATCH_TOKENS = 400, 4000
TOKENS, OUTPUT, A_SECOND = 500, 32, 2.0
PAGE_SIZE, BUDGET, RUNNING = 32, 512, 64
SECONDS_PER_STEP, SECONDS_PER_TOKEN = 0.002, 0.000_15
TARGET = 1.0


@dataclass(frozen=True)
class Row:
    """One line of the table; times in seconds."""

    policy: str
    ttft_p50: float
    ttft_p99: float
    ttft_max: float
    on_time: float
    """Share of the interactive requests with a first token within a second."""
    batch_end: float
    """When the last batch request has ended."""
    batch_preemptions: int


def limits_of(policy: str) -> SchedulerLimits:
    """Return the limits of a policy: fcfs, deadline, or deadline with preemption."""
    by_deadline = policy != "fcfs"
    return SchedulerLimits(
        "mixed",
        BUDGET,
        BUDGET + RUNNING,
        RUNNING,
        max_partial_prefills=4,
        policy="deadline" if by_deadline else "fcfs",
        priority_preemption="preemption" in policy,
        classes=classes_of(None, 0) if by_deadline else (),
    )


def arrivals(seconds: float, seed: int) -> list[tuple[float, str]]:
    draw = random.Random(seed)
    found, at = [(0.0, "batch")] * BATCHES, draw.expovariate(A_SECOND)
    while at < seconds:
        found.append((at, "interactive"))
        at += draw.expovariate(A_SECOND)
    return found


def simulate(policy: str, seconds: float, batch_output: int, seed: int) -> Row:
    limits = limits_of(policy)
    scheduler = Scheduler(limits, KVManager(num_pages=2_000_000 // PAGE_SIZE, page_size=PAGE_SIZE))
    clock, todo = VirtualClock(), arrivals(seconds, seed)
    came, names = [at for at, _ in todo], [name for _, name in todo]
    first: dict[int, float] = {}
    ends: dict[int, float] = {}
    sent = 0
    while sent < len(todo) or scheduler.has_work:
        while sent < len(todo) and (came[sent] <= clock.now() or not scheduler.has_work):
            clock.advance(max(0.0, came[sent] - clock.now()))
            tokens, output = (TOKENS, OUTPUT) if names[sent] == "interactive" else (BATCH_TOKENS, batch_output)
            options = {"priority_class": names[sent], "arrived": micros_at(came[sent])}
            scheduler.add(Submit(sent, (sent + 1,) * tokens, resolved(output), **options))
            sent += 1
        plan = scheduler.schedule()
        assert plan is not None, "work, and nothing to plan"
        clock.advance(SECONDS_PER_STEP + SECONDS_PER_TOKEN * plan.num_tokens)
        for each in scheduler.commit(plan, result_of(plan)):
            first.setdefault(each.request_id, clock.now())
            if each.finish_reason is not None:
                ends[each.request_id] = clock.now()
    waits = [first[number] - at for number, at in enumerate(came) if names[number] == "interactive"]
    return Row(
        policy,
        percentile(waits, 0.5),
        percentile(waits, 0.99),
        max(waits),
        sum(wait <= TARGET for wait in waits) / len(waits),
        max(ends[number] for number in range(BATCHES)),
        scheduler.state.preemptions,
    )


def table(rows: Sequence[Row]) -> str:
    head = ["policy", "interactive TTFT p50", "p99", "max", "within 1 s", "batch job ends after", "preemptions"]
    lines = [f"| {' | '.join(head)} |", "|---" * len(head) + "|"]
    for row in rows:
        times = (f"{each:,.2f} s" for each in (row.ttft_p50, row.ttft_p99, row.ttft_max))
        cells = [f"`{row.policy}`", *times, f"{row.on_time:.1%}", f"{row.batch_end:.1f} s", f"{row.batch_preemptions}"]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=200.0, help="length of the interactive arrivals")
    parser.add_argument("--batch-output", type=int, default=64, help="tokens that a batch request generates")
    parser.add_argument("--seed", type=int, default=1, help="seed of the arrivals")
    parser.add_argument("--json", type=Path, help="write the rows here, too")
    args = parser.parse_args()
    policies = ("fcfs", "deadline", "deadline, preemption")
    rows = [simulate(policy, args.seconds, args.batch_output, args.seed) for policy in policies]
    print(table(rows))
    if args.json:
        args.json.write_text(json.dumps([asdict(row) for row in rows], indent=2) + "\n")


if __name__ == "__main__":
    main()

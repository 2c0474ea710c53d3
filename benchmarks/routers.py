"""Compare the routers of `sluice simulate` on conversations.

python benchmarks/routers.py --replicas 4 --seeds 5
python benchmarks/routers.py --case unequal      # the last replica computes at 0.4 of the speed of the others
python benchmarks/routers.py --case bursts       # conversations begin 20 at a time
python benchmarks/routers.py --case strangers    # conversations have no common prefix
python benchmarks/routers.py --case single       # nothing is cached: as many single requests, of about 450 tokens

Replicas have the costs of a model of 0.6 billion parameters on two cores of a CPU, rounded: about 280 tokens of prefill
a second. Times are simulated, so they are the same on every machine.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from statistics import fmean
from typing import Any, NamedTuple

from sluice.bench.metrics import percentile
from sluice.bench.records import Record
from sluice.routing.policies import POLICIES
from sluice.scheduler.setup import SchedulerSetup
from sluice.sim.fleet import ReplicaSpec
from sluice.sim.routers import publish_every, sim_router
from sluice.sim.simulate import simulate
from sluice.sim.traces.synthetic import synthetic_arrivals
from sluice.sim.workload import Arrival
from sluice.sim.world import World
from sluice.types import Regime, SchedulerLimits

COSTS = (30_000.0, 3_500.0, 800.0, 0.3, 0.15, 0.0)
"""Microseconds of a step, a token, a row, a key, a pair and a byte."""
LIMITS = SchedulerLimits(
    schedule="mixed", chunked_prefill_size=128, max_batch_tokens=192, max_running_requests=64, max_partial_prefills=4
)
SETUP = SchedulerSetup(LIMITS, num_pages=2048, page_size=16)
TURNS = 5
TALKS = {
    "turns": TURNS,
    "think_ms": 8000.0,
    "shared_prefix_tokens": 256,
    "prompt_tokens": "lognormal:120:0.8",
    "output_tokens": "lognormal:60:0.5",
}
MS_PER_TOKEN = 60.0


class Case(NamedTuple):
    """What is simulated."""

    burst: int = 1
    """Conversations that begin at once."""
    slowest: float = 1.0
    """Speed of the last replica."""
    prefix: int = 256
    """Tokens that all conversations begin with."""
    talks: bool = True
    """Conversations; off: single requests."""


CASES = {
    "equal": Case(),
    "unequal": Case(slowest=0.4),
    "bursts": Case(burst=20),
    "strangers": Case(prefix=0),
    "single": Case(prefix=0, talks=False),
}


def arrivals_of(case: Case, talks: int, rate: float, seed: int) -> Sequence[Arrival]:
    """Return the turns of conversations, of which `rate` begin in a second; or as many single requests."""
    given: dict[str, Any] = TALKS | {"seed": seed, "shared_prefix_tokens": case.prefix}
    if not case.talks:
        given |= {"turns": 1, "think_ms": 0.0, "prompt_tokens": "lognormal:330:0.8"}
        talks, rate = talks * TURNS, rate * TURNS
    if case.burst > 1:
        given |= {"burst_size": case.burst, "burst_interval_ms": 1000 * case.burst / rate}
    else:
        given |= {"request_rate": rate}
    return synthetic_arrivals(given | {"num_requests": talks}, ms_per_token=MS_PER_TOKEN)


def simulated(name: str, arrivals: Sequence[Arrival], case: Case, count: int, seed: int) -> Sequence[Record]:
    """Simulate a router in front of replicas of which the last may be slower."""
    replicas = []
    for index in range(count):
        slower = 1 / case.slowest if index == count - 1 else 1.0
        world = World(dict.fromkeys(Regime, tuple(slower * each for each in COSTS)))
        spec = ReplicaSpec(SETUP, world, count, seed=seed, publish_every=publish_every(name))
        replicas += spec.make([index])
    return simulate(arrivals, replicas, sim_router(name, SETUP, count, seed))


def figures(records: Sequence[Record]) -> tuple[float, float, float, float]:
    """Return median and 99th percentile of the TTFT, the mean end to end, and the share of cached prompt tokens."""
    ttfts = sorted(each.arrivals[0].at - each.due for each in records)
    cached = sum(each.cached_tokens or 0 for each in records) / sum(each.prompt_tokens for each in records)
    ends = fmean(each.ended - each.due for each in records)
    return percentile(ttfts, 50), percentile(ttfts, 99), ends, 100 * cached


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--case", choices=tuple(CASES), default="equal")
    parser.add_argument("--routers", default=",".join(POLICIES), help="names with commas between them")
    parser.add_argument("--replicas", type=int, default=4)
    parser.add_argument("--talks", type=int, default=200, help="conversations")
    parser.add_argument("--rate", type=float, default=0.3, help="conversations that begin in a second")
    parser.add_argument("--seeds", type=int, default=5, help="workloads; figures are their mean, least and greatest")
    args = parser.parse_args()
    case = CASES[args.case]
    loads = [arrivals_of(case, args.talks, args.rate, seed) for seed in range(args.seeds)]
    print(f"{args.case}: {args.talks * TURNS} requests to {args.replicas} replicas, {args.seeds} workloads")
    print(f"{'router':14} {'TTFT p50, s':>20} {'TTFT p99, s':>20} {'end to end, s':>20} {'cached, %':>16}")
    for name in args.routers.split(","):
        rows = [figures(simulated(name, arrivals, case, args.replicas, seed)) for seed, arrivals in enumerate(loads)]
        columns = [(fmean(values), min(values), max(values)) for values in zip(*rows, strict=True)]
        p50, p99, ends, share = (f"{mean:.2f} ({least:.2f}-{most:.2f})" for mean, least, most in columns)
        print(f"{name:14} {p50:>20} {p99:>20} {ends:>20} {share:>16}")


if __name__ == "__main__":
    main()

"""Compare the routers of `sluice simulate` on conversations.

python benchmarks/routers.py --replicas 4 --seeds 5

Replicas have the costs of a model of 0.6 billion parameters on two cores of a CPU, rounded: about 280 tokens of prefill
a second. Times are simulated, so they are the same on every machine.
"""

from __future__ import annotations

import argparse
from statistics import fmean

from sluice.bench.metrics import percentile
from sluice.routing.policies import POLICIES
from sluice.scheduler.setup import SchedulerSetup
from sluice.sim.routers import sim_router
from sluice.sim.simulate import replicas_of, simulate
from sluice.sim.traces.synthetic import synthetic_arrivals
from sluice.sim.world import World
from sluice.types import Regime, SchedulerLimits

COSTS = (30_000.0, 3_500.0, 800.0, 0.3, 0.15, 0.0)
"""Microseconds of a step, a token, a row, a key, a pair and a byte."""
LIMITS = SchedulerLimits(
    schedule="mixed", chunked_prefill_size=128, max_batch_tokens=192, max_running_requests=64, max_partial_prefills=4
)
SETUP = SchedulerSetup(LIMITS, num_pages=2048, page_size=16)
TALKS = {
    "turns": 5,
    "think_ms": 8000.0,
    "shared_prefix_tokens": 256,
    "prompt_tokens": "lognormal:120:0.8",
    "output_tokens": "lognormal:60:0.5",
}
MS_PER_TOKEN = 60.0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--replicas", type=int, default=4)
    parser.add_argument("--talks", type=int, default=200, help="conversations")
    parser.add_argument("--rate", type=float, default=0.3, help="conversations that begin in a second")
    parser.add_argument("--seeds", type=int, default=5, help="workloads; figures are their mean, least and greatest")
    args = parser.parse_args()
    given = TALKS | {"num_requests": args.talks, "request_rate": args.rate}
    loads = [synthetic_arrivals(given | {"seed": seed}, ms_per_token=MS_PER_TOKEN) for seed in range(args.seeds)]
    world = World(dict.fromkeys(Regime, COSTS))
    print(f"{args.talks * TALKS['turns']} requests to {args.replicas} replicas, {args.seeds} workloads")
    print(f"{'router':14} {'TTFT p50, s':>20} {'TTFT p99, s':>20} {'cached':>18}")
    for name in POLICIES:
        rows = []
        for seed, arrivals in enumerate(loads):
            router = sim_router(name, SETUP, args.replicas, seed)
            records = simulate(arrivals, replicas_of(SETUP, world, args.replicas, seed=seed), router)
            ttfts = sorted(each.arrivals[0].at - each.due for each in records)
            cached = sum(each.cached_tokens or 0 for each in records) / sum(each.prompt_tokens for each in records)
            rows.append((percentile(ttfts, 50), percentile(ttfts, 99), 100 * cached))
        columns = [(fmean(values), min(values), max(values)) for values in zip(*rows, strict=True)]
        p50, p99, share = (f"{mean:.2f} ({least:.2f}-{most:.2f})" for mean, least, most in columns)
        print(f"{name:14} {p50:>20} {p99:>20} {share:>18}")


if __name__ == "__main__":
    main()

"""Compare steps over KV in int8 with steps over KV in the model's dtype, in turns in one process.

    python benchmarks/int8_kv.py --checkpoint build/checkpoints/qwen3-0.6b [--steps decode:8@4000,...] [--turns N]

Steps are written as for `cpu_steps.py`. For each it prints the medians in milliseconds, the median of the ratios of
neighbouring turns with the smallest and the largest, and the read rate of memory beside the turns: on a machine whose
speed changes by the minute only the ratio says something.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

import torch

from benchmarks.cpu_steps import MOST_SLOTS, Steps, parse_step
from sluice.assembly.load import load
from sluice.config import EngineConfig

KINDS = ("auto", "int8")
STEPS = "decode:1@4000,decode:8@64,decode:8@4000,chunk:512,chunk:512@4000"
PROBE = 1 << 27
"""Floats that the probe of the memory reads."""


def read_rate(probe: torch.Tensor) -> float:
    """Return the bytes that torch sums in a second, on all its threads."""
    start = time.perf_counter()
    probe.sum()
    return probe.nbytes / (time.perf_counter() - start)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--checkpoint", type=Path, required=True, help="a Hugging Face folder")
    parser.add_argument("--steps", default=STEPS, metavar="LIST", help=f"steps to time (default: {STEPS})")
    parser.add_argument("--threads", type=int, default=2, help="threads of the engine (default: 2)")
    parser.add_argument("--turns", type=int, default=5, help="of each kind (default: 5)")
    parser.add_argument("--max-total-tokens", type=int, default=36_864, help="KV pool (default: 36864)")
    args = parser.parse_args(arguments)
    sizes = {"max_total_tokens": args.max_total_tokens, "max_running_requests": MOST_SLOTS + 1, "page_size": 32}
    options = {"model": str(args.checkpoint), "threads": args.threads, "dtype": "bfloat16", **sizes}
    engines = [
        Steps(load(EngineConfig.from_options(options | {"kv_cache_dtype": kind}), progress=False), None)
        for kind in KINDS
    ]
    probe = torch.ones(PROBE)
    print(f"{'step':>24} {'wide ms':>9} {'int8 ms':>9} {'ratio':>6} {'least':>6} {'most':>6} {'GB/s':>6}")
    for text in args.steps.split(","):
        parts = parse_step(text)
        wide, narrow, rates = [], [], []
        for _ in range(args.turns):
            for engine, found in zip(engines, (wide, narrow), strict=True):
                found.append(1e3 * statistics.median(engine.seconds(parts)))
            rates.append(read_rate(probe) / 1e9)
        ratios = [b / a for a, b in zip(wide, narrow, strict=True)]
        ours = [statistics.median(figures) for figures in (wide, narrow, ratios)]
        print(
            f"{text:>24} {ours[0]:>9.1f} {ours[1]:>9.1f} {ours[2]:>6.2f} {min(ratios):>6.2f} {max(ratios):>6.2f}"
            f" {statistics.median(rates):>6.1f}",
            flush=True,
        )


if __name__ == "__main__":
    main()

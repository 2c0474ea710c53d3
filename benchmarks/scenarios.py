"""Measure how many random scenarios a minute one core checks, with every law after every call.

python benchmarks/scenarios.py --count 2000
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))

from scenarios import random_scenario, run


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=2000, help="scenarios to run")
    parser.add_argument("--seed", type=int, default=0, help="the first seed")
    args = parser.parse_args()
    start = time.process_time()
    steps = sum(run(random_scenario(seed)) for seed in range(args.seed, args.seed + args.count))
    seconds = time.process_time() - start
    print(f"{args.count} scenarios, {steps} steps, {args.count / seconds * 60:,.0f} scenarios a minute (CPU time)")


if __name__ == "__main__":
    main()

"""Compare an ITL target with fixed chunks: on three mixes, with targets of 2, 4 and 8 decode steps and `auto`.

    python benchmarks/make_checkpoint.py --shape qwen3-0.6b --out build/checkpoints/qwen3-0.6b
    python benchmarks/itl_target.py --checkpoint build/checkpoints/qwen3-0.6b --json itl.json

The engine runs in this process over a model that is loaded once. Each mix is served by every configuration in turns,
for `--rounds` rounds, with and without a busy neighbour, and each run begins with a machine that is not known. Beside
that: priors that are wrong by 0.1 and 10, a neighbour that begins in mid-run, and a replay of a recorded run. A target
is compared with the fixed chunk of the same ITL p95; where none was measured, with a straight line between two. All of
it takes 10 to 20 minutes on two cores.
`--scale 0.2 --mixes chat` tests the script.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Literal, NamedTuple

sys.path.insert(0, str(Path(__file__).parents[1]))

from benchmarks.itl.measured import Machine, Run, Target, errors_of, figures, spread_of
from benchmarks.itl.mixes import MIXES, requests_of
from benchmarks.peers.neighbour import neighbour
from sluice.bench.results import machine, versions
from sluice.config import ConfigError
from sluice.types import Regime

TARGETS: tuple[int | Literal["auto"], ...] = (2, 4, 8, "auto")
"""In undisturbed decode steps; `auto` learns how long they are."""
CHUNKS = (16, 32, 128)
"""The last is the default on most processors."""
ROWS = 4
"""Of the undisturbed decode step."""
SAME_ITL = 1.05
"""Factor by which the ITL p95 of a fixed chunk may differ from that of a target to be the same."""
PRIORS = (0.1, 1.0, 10.0)
SLOW_AFTER = 60
"""Steps before a neighbour begins in mid-run."""
SETTLED = 10
"""Mixed steps after which it must be within the target again."""


class Case(NamedTuple):
    """A configuration: a target in decode steps, or a fixed chunk."""

    target: int | Literal["auto"] | None
    chunk: int | None

    @property
    def label(self) -> str:
        if self.target is None:
            return f"chunk {self.chunk}"
        return "auto" if self.target == "auto" else f"target {self.target}x"

    def goal(self, decode: float) -> Target:
        """Return the target, of `decode` seconds for a decode step."""
        return self.target * decode if isinstance(self.target, int) else self.target


CASES = (*(Case(target, None) for target in TARGETS), *(Case(None, chunk) for chunk in CHUNKS))


def compare(
    engine: Machine, names: Sequence[str], decode: float, rounds: int, scale: float
) -> Iterator[dict[str, Any]]:
    """Serve each mix in all configurations, in turns. Yields a record for each run."""
    for is_noisy in (False, True):
        for number in range(rounds):
            for name in names:
                asked = requests_of(MIXES[name], scale, seed=number)
                for case in CASES:
                    target = case.goal(decode)
                    with neighbour(_last_processor() if is_noisy else None):
                        run = engine.run(asked, decode, chunk=case.chunk, target=target)
                    record = {"mix": name, "noisy": is_noisy, "round": number, "case": case.label, "target": target}
                    yield record | figures(run)


class Fixed(NamedTuple):
    """What a fixed chunk reached on a mix, or what one between two would, in a straight line."""

    p95: float
    """Of the ITL, in seconds."""
    speed: float
    """Tokens per second."""
    label: str


def fixed_of_itl(p95: float, fixed: Sequence[Fixed]) -> Fixed | None:
    """Return the fastest fixed chunk of an ITL p95: a measured one that differs by no more than `SAME_ITL`, or else one
    between the fastest below and the next above. None: all have longer gaps."""
    below = [each for each in fixed if each.p95 <= p95 * SAME_ITL]
    if not below:
        return None
    best = max(below, key=lambda each: each.speed)
    following = min((each for each in fixed if each not in below), default=None)
    if following is None or following.speed <= best.speed or best.p95 >= p95 / SAME_ITL:
        return best
    share = (p95 - best.p95) / (following.p95 - best.p95)
    label = f"between {best.label} and {following.label.removeprefix('chunk ')}"
    return Fixed(p95, best.speed + share * (following.speed - best.speed), label)


def gains(runs: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Compare each target with the fastest fixed chunk of its mix whose ITL p95 is the same, medians over rounds."""
    found = []
    for mix, is_noisy in dict.fromkeys((run["mix"], run["noisy"]) for run in runs):
        by_case: dict[str, Fixed] = {}
        infeasible: dict[str, bool] = {}
        for case in CASES:
            own = [run for run in runs if (run["mix"], run["noisy"], run["case"]) == (mix, is_noisy, case.label)]
            if own:
                speed = statistics.median(run["tokens_per_second"] for run in own)
                p95 = statistics.median(run["itl"]["p95"] for run in own)
                by_case[case.label] = Fixed(p95, speed, case.label)
                infeasible[case.label] = any(run.get("is_infeasible", False) for run in own)
        fixed = [by_case[case.label] for case in CASES[len(TARGETS) :] if case.label in by_case]
        for case in CASES[: len(TARGETS)]:
            if case.label not in by_case:
                continue
            best = fixed_of_itl(by_case[case.label].p95, fixed)
            record: dict[str, Any] = {"mix": mix, "noisy": is_noisy, "case": case.label, "against": None}
            record |= {"throughput": None, "is_infeasible": infeasible[case.label]}
            if best is not None:
                record |= {"against": best.label, "throughput": by_case[case.label].speed / best.speed - 1}
            found.append(record)
    return found


def wrong_priors(engine: Machine, name: str, decode: float, scale: float) -> dict[str, dict[str, float]]:
    """Return the errors after the first steps, by the factor that the prior is wrong by."""
    asked = requests_of(MIXES[name], scale, seed=100)
    return {
        f"{prior:g}": errors_of(engine.run(asked, decode, target=4 * decode, prior=prior).steps) for prior in PRIORS
    }


def slow_down(engine: Machine, name: str, decode: float, scale: float) -> dict[str, Any]:
    """Serve a mix while a neighbour begins. Returns how steps after that keep the target."""
    asked, target = requests_of(MIXES[name], scale, seed=101), 8 * decode
    with ExitStack() as stack:
        run = engine.run(asked, decode, target=target, before_step=_starter(stack))
    after = [step for step in run.steps[SLOW_AFTER:] if step.regime is Regime.MIXED]
    ratios = [step.micros / 1e6 / target for step in after]
    late = [ratio > 1.1 for ratio in ratios[SETTLED:]]
    share = sum(late) / len(late) if late else None
    return {"target": target, "first_ratios": ratios[:SETTLED], "late_10%_afterwards": share, "mixed_steps": len(late)}


def _starter(stack: ExitStack) -> Callable[[int], None]:
    """Return a function that starts a neighbour once so many steps have run."""
    has_begun: list[bool] = []

    def start(steps: int) -> None:
        if steps >= SLOW_AFTER and not has_begun:
            has_begun.append(True)
            stack.enter_context(neighbour(_last_processor()))

    return start


def replayed(engine: Machine, name: str, decode: float, scale: float) -> Run:
    """Record a run with a target, and plan it again."""
    with tempfile.TemporaryDirectory() as folder:
        asked = requests_of(MIXES[name], scale, seed=102)
        return engine.run(asked, decode, target=4 * decode, trace=Path(folder) / "trace.jsonl")


def _last_processor() -> int:
    return max(os.sched_getaffinity(0))


def main(arguments: Sequence[str] | None = None) -> int:
    args = _parser().parse_args(arguments)
    names = args.mixes.split(",")
    unknown = [name for name in names if name not in MIXES]
    if unknown:
        print(f"itl_target: error: --mixes are of {', '.join(MIXES)}, got {unknown[0]!r}", file=sys.stderr)
        return 1
    options = {"enable_prefix_caching": False, "max_running_requests": 64, "itl_target": "1s"}
    if args.threads is not None:
        options["threads"] = args.threads
    try:
        engine = Machine(args.checkpoint, max_total_tokens=16384, **options)
    except ConfigError as error:
        print(f"itl_target: error: {error}", file=sys.stderr)
        return 1
    record = measure(engine, names, args.rounds, args.scale) | {"machine": machine(), "versions": versions()}
    record |= {"model": args.checkpoint or "the default model", "scale": args.scale, "rounds": args.rounds}
    if args.json is not None:
        args.json.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
    print_table(record)
    return 0


def measure(engine: Machine, names: Sequence[str], rounds: int, scale: float) -> dict[str, Any]:
    """Measure everything. Returns one record."""
    quiet = engine.decode_steps(ROWS)
    with neighbour(_last_processor()):
        noisy = engine.decode_steps(ROWS)
    decode = statistics.median(quiet)
    runs = []
    for run in compare(engine, names, decode, rounds, scale):
        runs.append(run)
        late = f", late by 10% {run['late_10%']:.1%}" if "late_10%" in run else ""
        noise = "noisy" if run["noisy"] else "quiet"
        print(
            f"{run['mix']:>10} {noise} {run['case']:>10}: {run['seconds']:.1f} s, ITL p95"
            f" {1000 * run['itl']['p95']:.1f} ms{late}",
            file=sys.stderr,
            flush=True,
        )
    return {
        "benchmark": "itl_target",
        "decode_step": decode,
        "spread_of_equal_steps": {"quiet": spread_of(quiet), "noisy": spread_of(noisy)},
        "runs": runs,
        "against_fixed": gains(runs),
        "wrong_priors": wrong_priors(engine, names[0], decode, scale),
        "slow_down": slow_down(engine, names[0], decode, scale),
        "replays": replayed(engine, names[0], decode, scale).replays,
    }


def print_table(record: Mapping[str, Any]) -> None:
    """Print the runs and comparisons as text."""
    spread = record["spread_of_equal_steps"]
    print(f"undisturbed decode step {1000 * record['decode_step']:.1f} ms, {ROWS} rows; equal steps differ by")
    print(f"  {spread['quiet']:.1%} from their local median, {spread['noisy']:.1%} beside a neighbour")
    print(f"{'mix':>10} {'noise':>6} {'case':>10} {'tok/s':>8} {'p50':>7} {'p95':>7} {'max':>7} {'TTFT':>8}", end="")
    print(f" {'>10%':>7} {'>25%':>7} {'worst':>6} {'error':>7} {'inf.':>5}")
    for run in record["runs"]:
        noise, itl = "noisy" if run["noisy"] else "quiet", run["itl"]
        times = " ".join(f"{1000 * each:7.1f}" for each in (itl["p50"], itl["p95"], run["itl_max"]))
        line = f"{run['mix']:>10} {noise:>6} {run['case']:>10} {run['tokens_per_second']:8.1f} {times}"
        line += f" {1000 * run['ttft_mean']:8.1f}"
        if "late_10%" in run:
            error = run["errors"].get("mixed")
            line += f" {run['late_10%']:7.1%} {run['late_25%']:7.1%} {run['worst_of_first_50']:6.2f}"
            line += f" {'-' if error is None else format(error, '.1%'):>7} {run['infeasible_steps']:5}"
        print(line)
    for each in record["against_fixed"]:
        gain = "no fixed chunk has its ITL" if each["throughput"] is None else f"{each['throughput']:+.1%}"
        print(f"{each['mix']:>10} {'noisy' if each['noisy'] else 'quiet':>6} {each['case']:>10}: {gain}", end="")
        print("" if each["against"] is None else f" against {each['against']}", end="")
        print(
            " (infeasible: most of its steps were the smallest, and predicted to take longer)" * each["is_infeasible"]
        )
    print(f"errors by wrong prior: {json.dumps(record['wrong_priors'])}")
    print(f"after a slow-down: {json.dumps(record['slow_down'])}")
    print(f"replay equal: {record['replays']}")


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--checkpoint", default="", help="a Hugging Face folder (default: the default model)")
    parser.add_argument("--mixes", default=",".join(MIXES), help=f"some of {', '.join(MIXES)} (default: all)")
    parser.add_argument("--rounds", type=int, default=1, help="rounds of all configurations (default: 1)")
    parser.add_argument("--scale", type=float, default=1.0, help="of all lengths (default: 1)")
    parser.add_argument("--threads", type=int, help="threads of the engine")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all numbers")
    return parser


if __name__ == "__main__":
    sys.exit(main())

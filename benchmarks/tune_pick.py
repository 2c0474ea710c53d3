"""Compare the setting that `sluice tune` picks with the best of a real measurement of all settings of a small grid.

    python benchmarks/tune_pick.py --repeats 3 --json tune_pick.json

Servers of one model run side by side on this machine, one for each setting of the grid. A machine is fitted to a run of
the first setting alone, with traffic of another seed. `sluice tune` searches the grid on that machine. Then every
setting is measured with the same traffic by `sluice bench`, in turns, A B C A B C.

Settings are compared by their worst figure over its limit, as `sluice tune` does. What is aimed at: the real worst
figure of the pick within 5% of that of the best setting, or within what equal runs of the best one differ by. Without
`--slo` each limit is the median of what the settings reach in a simulation, so that some settings meet it and others do
not. Prompts are the same in each run, so the prefix cache is off. Clients and servers share the machine, so run it on
a quiet one: with the defaults it takes 10 minutes on two cores.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import sys
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

from benchmarks.simulation_accuracy import server
from sluice.bench.measure import REPEAT_SEED, measure_server
from sluice.bench.options import BenchOptions, options_from
from sluice.bench.records import Record
from sluice.bench.results import machine as this_machine
from sluice.sim.candidates import argument, candidates, given_grid
from sluice.sim.machine import Machine, read_machine
from sluice.sim.slo import Slo, parse_slo
from sluice.sim.tally import Counts, SloTally
from sluice.sim.traces.synthetic import synthetic_arrivals
from sluice.sim.tune import REPEATS, Tuned, Tuner
from sluice.sim.workload import Arrival

SEARCH = ("chunked_prefill_size=64,128,256", "schedule=mixed,prefill-first")
FIRST: Mapping[str, Any] = {"chunked_prefill_size": 64, "schedule": "mixed"}
"""The setting that the machine is fitted to; one of the grid."""
MIX: Mapping[str, Any] = {"prompt_tokens": "lognormal:300:0.9", "output_tokens": "lognormal:40:0.7", "ignore_eos": True}
FIGURES = parse_slo("ttft_p95<1s,itl_p99<1s")
"""The figures of the objectives. These limits are replaced by others."""
GOAL = 5.0
"""Percent above the best setting that the pick may be."""


@dataclass(frozen=True, slots=True)
class Measured:
    """A setting of the grid."""

    options: Mapping[str, Any]
    real: tuple[float, ...]
    """The worst figure over its limit, of each real run."""
    simulated: tuple[float, ...]
    """The same of each simulated repeat; empty: it was lost before the repeats."""
    figures: tuple[Mapping[str, float], ...] = ()
    """Seconds, of each real run."""

    @property
    def median(self) -> float:
        return median(self.real)

    @property
    def spread(self) -> float:
        """Of the real runs, in percent of their median."""
        return 100 * (max(self.real) - min(self.real)) / self.median

    @property
    def name(self) -> str:
        return " ".join(argument(name, value) for name, value in self.options.items())


@dataclass(frozen=True, slots=True)
class Verdict:
    """How good the pick is."""

    best: Measured
    pick: Measured

    @property
    def loss(self) -> float:
        """By how many percent the pick's worst figure is above that of the best setting."""
        return 100 * (self.pick.median / self.best.median - 1)

    @property
    def allowed(self) -> float:
        """Percent: the goal, or what equal runs of the best setting differ by."""
        return max(GOAL, self.best.spread)

    def __str__(self) -> str:
        told = "within" if self.loss <= self.allowed else "MORE THAN"
        return (
            f"best: {self.best.name}; pick: {self.pick.name}, {self.loss:+.1f}%: {told} {self.allowed:.1f}%"
            f" (the larger of {GOAL:g}% and the spread of the best one's runs)"
        )


def main() -> int:
    given = parse()
    common = {**MIX, "num_requests": given.num_requests, "request_rate": given.request_rate}
    common |= {name: value for name in ("prompt_tokens", "output_tokens") if (value := getattr(given, name))}
    fixed = {"enable_prefix_caching": False, "max_total_tokens": given.max_total_tokens}
    traffic = synthetic_arrivals({**common, "seed": 0}, ms_per_token=None)
    load = [os.getloadavg()[0]]
    with tempfile.TemporaryDirectory() as folder:
        machine = calibrated(given.model, {**FIRST, **fixed}, options_from({**common, "seed": REPEAT_SEED}), folder)
        settings = [{**FIRST, **each} for each in given_grid(SEARCH, machine)]
        slo = parse_slo(given.slo) if given.slo else binding(machine, traffic)
        print(f"{slo}; {len(traffic)} requests in {traffic[-1].time:.0f} s", file=sys.stderr, flush=True)
        tuned = tune(machine, traffic, slo)
        with ExitStack() as stack:
            urls = [
                stack.enter_context(server(given.model, {**each, **fixed}, Path(folder) / f"{number}.jsonl"))
                for number, each in enumerate(settings)
            ]
            runs = measured(urls, options_from({**common, "seed": 0}), given.repeats)
    load.append(os.getloadavg()[0])
    rows = [row(each, slo, traffic, own, tuned) for each, own in zip(settings, runs, strict=True)]
    chosen = {**FIRST, **tuned.pick.candidate.settings}
    verdict = Verdict(
        min(rows, key=lambda each: each.median), next(each for each in rows if dict(each.options) == chosen)
    )
    print("\n".join([*machine.lines(), f"load {load[0]:.1f} before, {load[1]:.1f} after", *table(rows, verdict, slo)]))
    if given.json is not None:
        content = {
            "machine": this_machine(),
            "arguments": vars(given) | {"model": Path(given.model).name, "json": None},
            "traffic": common,
            "objectives": str(slo),
            "load": load,
            "fitted": machine.lines(),
            "settings": [asdict(each) for each in rows],
            "pick": chosen,
            "best": verdict.best.options,
            "loss_percent": verdict.loss,
            "allowed_percent": verdict.allowed,
        }
        Path(given.json).write_text(json.dumps(content, indent=2) + "\n")
    return 0


def calibrated(model: str, options: Mapping[str, Any], workload: BenchOptions, folder: str) -> Machine:
    """Return the machine that a run of one setting shows."""
    trace = Path(folder) / "calibration.jsonl"
    print("calibrating", file=sys.stderr, flush=True)
    with server(model, options, trace) as url:
        asyncio.run(measure_server(url, workload))
    return read_machine(trace)


def binding(machine: Machine, traffic: Sequence[Arrival]) -> Slo:
    """Return objectives that about half of the settings meet in a simulation."""
    outcomes = tune(machine, traffic, FIGURES, repeats=1).outcomes
    figures = [each.figure for each in FIGURES.objectives]
    middles = {figure: median(each.means()[figure] for each in outcomes) for figure in figures}
    return parse_slo(",".join(f"{figure}<{1e6 * value:.0f}us" for figure, value in middles.items()))


def tune(machine: Machine, traffic: Sequence[Arrival], slo: Slo, repeats: int = REPEATS) -> Tuned:
    """Return what `sluice tune` finds in the grid."""
    return Tuner(traffic, slo, repeats=repeats).tune(candidates(machine, given_grid(SEARCH, machine), 200, 0), [1])


def measured(urls: Sequence[str], workload: BenchOptions, repeats: int) -> list[list[Sequence[Record]]]:
    """Measure servers in turns with the same traffic. Returns the runs of each."""
    found: list[list[Sequence[Record]]] = [[] for _ in urls]
    for repeat in range(repeats):
        for number, url in enumerate(urls):
            print(f"{repeat + 1} of {repeats}: setting {number + 1} of {len(urls)}", file=sys.stderr, flush=True)
            found[number].append(asyncio.run(measure_server(url, workload)).runs[0].requests)
    return found


def row(
    options: Mapping[str, Any], slo: Slo, traffic: Sequence[Arrival], runs: Iterable[Sequence[Record]], tuned: Tuned
) -> Measured:
    """Return a setting with its real and simulated runs."""
    figures = []
    for run in runs:
        tally = SloTally(slo, Counts(traffic))
        for record in run:
            tally.add(record)
        figures.append(tally.values())
    same = (each for each in tuned.outcomes if {**FIRST, **each.candidate.settings} == dict(options))
    return Measured(
        options,
        tuple(slo.excess(each) for each in figures),
        tuple(next((each.excesses for each in same), ())),
        tuple({str(figure): value for figure, value in each.items()} for each in figures),
    )


def table(rows: Sequence[Measured], verdict: Verdict, slo: Slo) -> list[str]:
    """Return the table for the documentation: the worst figure over its limit, in percent."""
    names = [str(each.figure) for each in slo.objectives]
    lines = [
        f"{slo}: worst figure in percent of its limit; medians, least-greatest of equal runs",
        f"| setting | {' | '.join(f'real {name}, ms' for name in names)} | real worst | simulated worst | |",
        "|---|" + "---|" * (len(names) + 3),
    ]
    for each in sorted(rows, key=lambda each: each.median):
        figures = " | ".join(f"{1000 * median(run[name] for run in each.figures):.1f}" for name in names)
        mark = ", ".join(word for word, one in (("best", verdict.best), ("pick", verdict.pick)) if one is each)
        lines.append(f"| `{each.name}` | {figures} | {percents(each.real)} | {percents(each.simulated)} | {mark} |")
    return [*lines, str(verdict)]


def percents(values: Sequence[float]) -> str:
    if not values:
        return "none"
    return f"{100 * median(values):.0f} ({100 * min(values):.0f}-{100 * max(values):.0f})"


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Compare the pick of sluice tune with a measurement of all settings.")
    parser.add_argument("--model", default="", help="a checkpoint (default: the bundled one)")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--num-requests", type=int, default=120)
    parser.add_argument("--request-rate", type=float, default=5.0)
    parser.add_argument("--prompt-tokens", help=f"lengths of prompts (default: {MIX['prompt_tokens']})")
    parser.add_argument("--output-tokens", help=f"lengths of answers (default: {MIX['output_tokens']})")
    parser.add_argument("--max-total-tokens", type=int, default=16384, help="pool of each server")
    parser.add_argument("--slo", help="objectives, as sluice tune takes them (default: from a simulation)")
    parser.add_argument("--json", metavar="FILE")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())

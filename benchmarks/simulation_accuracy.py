"""Compare simulations with the real runs that they predict.

    python benchmarks/simulation_accuracy.py --repeats 5 --json accuracy.json

Servers of one model run side by side on this machine, each with a policy and a mix of requests of its own, and are
measured in turns by `sluice bench`, A B C A B C, with the same requests in each turn and no cached prefixes, so that
they differ by chance alone. A machine is fitted to the trace of the first server alone. It predicts

    itself         the same policy and mix, which says how well the model fits
    policy         another chunk size, and another schedule, with the same mix
    mix            other requests, with the same policy

Beside each figure stand the real runs, their spread (largest less smallest, over their median), what the engine itself
saw of them (arrivals at the server, tokens when a step brought them), and how far the prediction is from the median of
the real runs. A difference that is smaller than the spread is no error of the simulation. What the engine did not see
is HTTP, texts and the client. Clients and servers share the machine, so run it on a quiet one. `--keep FOLDER` keeps
traces and results there, and `--from FOLDER` compares them again without measuring.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Any

from sluice.bench.measure import measure_server
from sluice.bench.metrics import e2e, itls, percentile, ttft
from sluice.bench.options import options_from
from sluice.bench.records import Record
from sluice.bench.results import machine as this_machine
from sluice.bench.results import read_result, write_result
from sluice.sim.candidates import argument
from sluice.sim.exact import recorded_records
from sluice.sim.machine import Machine, read_machine
from sluice.sim.settings import changed
from sluice.sim.simulate import replicas_of, simulate
from sluice.sim.traces.synthetic import synthetic_arrivals
from sluice.tracing.file import TraceReader

CALIBRATED: Mapping[str, Any] = {"chunked_prefill_size": 64}
MIX: Mapping[str, Any] = {"prompt_tokens": "lognormal:150:0.9", "output_tokens": "lognormal:40:0.7"}
HELD_OUT: Mapping[str, Any] = {"prompt_tokens": "lognormal:400:0.7", "output_tokens": "lognormal:16:0.5"}
ALIVE_SECONDS = 300
SEEDS = 5
"""Simulations of a case, with other residuals: their median counts."""


@dataclass(frozen=True, slots=True)
class Case:
    """A policy and a mix."""

    name: str
    options: Mapping[str, Any]
    """Of the engine."""
    mix: Mapping[str, Any]


CASES: Sequence[Case] = (
    Case("itself", CALIBRATED, MIX),
    Case("policy: chunk", {**CALIBRATED, "chunked_prefill_size": 256}, MIX),
    Case("policy: schedule", {**CALIBRATED, "schedule": "prefill-first"}, MIX),
    Case("mix", CALIBRATED, HELD_OUT),
)


@dataclass(frozen=True, slots=True)
class Figure:
    """One figure of a case."""

    case: str
    name: str
    real: tuple[float, ...]
    """Of each run."""
    simulated: float
    engine: tuple[float, ...] = ()
    """Of each run, as the engine saw it."""

    @property
    def median(self) -> float:
        return median(self.real)

    @property
    def is_share(self) -> bool:
        return self.name.startswith("ITL over")

    @property
    def spread(self) -> float:
        """Of the real runs, over their median; of shares, in points."""
        width = max(self.real) - min(self.real)
        return 100 * width if self.is_share else 100 * width / self.median

    @property
    def error(self) -> float:
        """In percent of the median, or in points."""
        off = self.simulated - self.median
        return 100 * off if self.is_share else 100 * off / self.median

    def line(self) -> str:
        scale, unit, off = (100, "%", "points") if self.is_share else (1000, "ms", "%")
        real, engine = (" ".join(f"{scale * each:.1f}" for each in runs) for runs in (self.real, self.engine))
        return (
            f"{self.case:<16} {self.name:<16} real {real} {unit}, spread {self.spread:.1f} {off};"
            f" at the engine {engine}; simulated {scale * self.simulated:.1f} {unit}: {self.error:+.1f} {off}"
        )


def main() -> int:
    given = parse()
    common = {
        "num_requests": given.num_requests,
        "request_rate": given.request_rate,
        "ignore_eos": True,
        "seed": given.seed,
    }
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(given.source or given.keep or temporary)
        if given.source is None:
            folder.mkdir(parents=True, exist_ok=True)
            measure(given.model, folder, common, given.repeats)
        machine = read_machine(trace_of(folder, 0))
        real = [[records_of(folder, number, repeat) for repeat in range(given.repeats)] for number in range(len(CASES))]
        seen = [list(engine_records(trace_of(folder, number), given.num_requests)) for number in range(len(CASES))]
    limit = given.itl_ms / 1000 if given.itl_ms else 2 * median(itls(each for run in real[0] for each in run))
    found = [
        figure
        for case, runs, engine in zip(CASES, real, seen, strict=True)
        for figure in compared(machine, case, common, runs, engine, limit)
    ]
    print("\n".join([*machine.lines(), f"load {os.getloadavg()[0]:.1f}", *(each.line() for each in found)]))
    if given.json is not None:
        content = {
            "machine": this_machine(),
            "arguments": vars(given) | {"model": Path(given.model).name, "json": None, "keep": None, "source": None},
            "fitted": machine.lines(),
            "figures": list(map(asdict, found)),
        }
        Path(given.json).write_text(json.dumps(content, indent=2) + "\n")
    return 0


def measure(model: str, folder: Path, common: Mapping[str, Any], repeats: int) -> None:
    """Measure all cases in turns, and leave traces and results in a folder."""
    with ExitStack() as stack:
        urls = [
            stack.enter_context(server(model, case.options, trace_of(folder, number)))
            for number, case in enumerate(CASES)
        ]
        for repeat in range(repeats):
            for number, case in enumerate(CASES):
                print(f"{repeat + 1} of {repeats}: {case.name}", file=sys.stderr, flush=True)
                options = options_from({**common, **case.mix})
                flush_cache(urls[number])
                result = asyncio.run(measure_server(urls[number], options))
                write_result(result, folder / f"{number}-{repeat}.json")


def trace_of(folder: Path, number: int) -> Path:
    """Return the trace of a case."""
    return folder / f"{number}.jsonl"


def records_of(folder: Path, number: int, repeat: int) -> Sequence[Record]:
    """Return the requests of a run of a case, as the client saw them."""
    return read_result(folder / f"{number}-{repeat}.json").runs[0].requests


def engine_records(trace: Path, num_requests: int) -> Iterator[Sequence[Record]]:
    """Yield the requests of each run, as the engine saw them. One request warms up before each."""
    with TraceReader(trace) as reader:
        found = recorded_records(reader)
    for start in range(1, len(found), num_requests + 1):
        yield found[start : start + num_requests]


def compared(
    machine: Machine,
    case: Case,
    common: Mapping[str, Any],
    real: Sequence[Sequence[Record]],
    engine: Sequence[Sequence[Record]],
    limit: float,
) -> Iterator[Figure]:
    """Yield the figures of a case, real and simulated.

    Args:
        engine: the real runs as the engine saw them.
    """
    changed_machine = changed(machine, case.options)
    setup, world, depth = changed_machine.setup, changed_machine.world, changed_machine.depth
    arrivals = synthetic_arrivals({**common, **case.mix}, ms_per_token=None)
    simulated = [
        figures(simulate(arrivals, replicas_of(setup, world, depth=depth, seed=seed)), limit) for seed in range(SEEDS)
    ]
    measured, seen = ([figures(records, limit) for records in runs] for runs in (real, engine))
    for name in measured[0]:
        runs, inside = (tuple(run[name] for run in runs) for runs in (measured, seen))
        yield Figure(case.name, name, runs, median(run[name] for run in simulated), inside)


def figures(records: Sequence[Record], limit: float) -> dict[str, float]:
    """Return what is compared, in seconds and as a share."""
    ends = [value for value in map(e2e, records) if value is not None]
    firsts = sorted(value for value in map(ttft, records) if value is not None)
    gaps = itls(records)
    return {
        "E2E mean": sum(ends) / len(ends),
        "TTFT p95": percentile(firsts, 95),
        f"ITL over {1000 * limit:.0f} ms": sum(gap > limit for gap in gaps) / len(gaps),
    }


@contextmanager
def server(model: str, options: Mapping[str, Any], trace: Path) -> Iterator[str]:
    """Run a server that writes a trace. Yields its URL."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    flags = [text for name, value in options.items() for text in argument(name, value).split()]
    command = [sys.executable, "-m", "sluice", "serve", *([model] if model else []), "--port", str(port)]
    process = subprocess.Popen(
        [*command, "--trace", str(trace), *flags], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    try:
        url = f"http://127.0.0.1:{port}"
        wait_for(url, process)
        yield url
    finally:
        process.terminate()
        process.wait(timeout=60)


def flush_cache(url: str) -> None:
    """Empty the prefix cache: each run sends the same requests."""
    with urllib.request.urlopen(urllib.request.Request(f"{url}/flush_cache", method="POST"), timeout=60):
        return


def wait_for(url: str, process: subprocess.Popen[bytes]) -> None:
    """Wait until a server answers.

    Raises:
        RuntimeError: it ended, or does not answer.
    """
    deadline = time.monotonic() + ALIVE_SECONDS
    while time.monotonic() < deadline and process.poll() is None:
        try:
            with urllib.request.urlopen(f"{url}/health", timeout=5) as answer:
                if answer.status == 200:
                    return
        except OSError:
            time.sleep(0.2)
    raise RuntimeError(f"the server at {url} does not answer")


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Compare simulations with the real runs that they predict.")
    parser.add_argument("--model", default="", help="a checkpoint (default: the bundled one)")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--num-requests", type=int, default=100)
    parser.add_argument("--request-rate", type=float, default=4.0)
    parser.add_argument("--seed", type=int, default=0, help="of the requests, which are the same in each run")
    parser.add_argument("--itl-ms", type=float, help="ITL that is a violation (default: twice the median)")
    parser.add_argument("--json", metavar="FILE")
    kept = parser.add_mutually_exclusive_group()
    kept.add_argument("--keep", metavar="FOLDER", help="keep traces and results in FOLDER")
    kept.add_argument("--from", dest="source", metavar="FOLDER", help="compare what --keep left, without measuring")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())

"""`sluice simulate`: from the command line to table and files. The command line imports this for its flags, so it
imports the rest late."""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sluice.bench.options import WorkloadOptions, add_option_group
from sluice.config import ConfigError, flag, options_of
from sluice.config.arguments import add_options
from sluice.config.model import CacheConfig
from sluice.routing.policies import POLICIES
from sluice.sim.inputs import add_machine_arguments, add_reading_arguments, longest, machine_from, read_arrivals
from sluice.sim.transfer import (
    Disaggregation,
    add_disaggregation_arguments,
    disaggregation_from,
    take_transfer_options,
)

if TYPE_CHECKING:
    from sluice.bench.records import Record
    from sluice.bench.results import Result
    from sluice.sim.machine import Machine
    from sluice.sim.windows import WindowOptions
    from sluice.sim.workload import Arrival

WORKLOAD = frozenset(name for name, _ in options_of(WorkloadOptions))
POOL = ("page_size", "max_total_tokens", "enable_prefix_caching")
REDRAW_SECONDS = 0.2


def add_simulate_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the flags of `sluice simulate`."""
    parser.add_argument(
        "trace", nargs="?", metavar="TRACE", help="a file of traffic; leave it out for a synthetic workload"
    )
    add_reading_arguments(parser)
    parser.add_argument(
        "--recorded-times",
        action="store_true",
        help="let all in TRACE happen when it did, and say how many steps are planned as they were then",
    )
    machine = add_machine_arguments(parser)
    machine.add_argument("--save-machine", metavar="FILE", help="write the machine to FILE")
    machine.add_argument("--replicas", type=int, metavar="N", help="engines that share the requests (default: 1)")
    machine.add_argument(
        "--router",
        metavar="NAME",
        help=f"how replicas are chosen: {', '.join(POLICIES)} (default: {POLICIES[0]})",
    )
    add_disaggregation_arguments(parser)
    windows = parser.add_argument_group("a part of a long TRACE")
    windows.add_argument(
        "--windows", type=int, metavar="N", help="simulate N parts of the time only, and show intervals (default: all)"
    )
    windows.add_argument("--window-seconds", type=float, metavar="S", help="length of a part (default: 60)")
    windows.add_argument(
        "--warm-up-seconds", type=float, metavar="S", help="what is simulated before and behind a part (default: 60)"
    )
    windows.add_argument("--processes", type=int, metavar="N", help="simulate so many parts at once (default: 1)")
    windows.add_argument(
        "--epoch-ms",
        type=float,
        metavar="MS",
        help="time after which the router sees the replicas again (default: 0, at each request)",
    )
    files = parser.add_argument_group("results")
    files.add_argument("--json", metavar="FILE", help="write settings, metrics and the time of every token to FILE")
    files.add_argument("--html", metavar="FILE", help="write a report as one HTML file")
    add_options(parser, "scheduler")
    add_options(parser, "cache", own=[name for name, _ in options_of(CacheConfig) if name not in POOL])
    synthetic = parser.add_argument_group("synthetic workload, instead of TRACE")
    add_option_group(synthetic, WorkloadOptions)
    synthetic.add_argument(
        "--ms-per-token",
        type=float,
        metavar="MS",
        help="with --turns: what a token of an answer is expected to take, until the next turn arrives",
    )


def run_simulate(given: dict[str, Any]) -> int:
    """Simulate a workload and show what comes of it. Returns the exit status.

    Args:
        given: the flags of the command line, by name.

    Raises:
        ConfigError: the command line is wrong.
        TraceError: a file of traffic is broken.
        BenchError: a file cannot be written.
    """
    from sluice.bench.command import checked_path
    from sluice.bench.report import table
    from sluice.bench.results import write_file, write_result
    from sluice.sim.machine import write_machine
    from sluice.sim.settings import changed

    if given.pop("recorded_times", False):
        return _follow(given)
    paths = {name: checked_path(flag(name), given.pop(name, None)) for name in ("json", "html", "save_machine")}
    _check_outputs(paths, (given.get("trace"), given.get("calibrate")))
    seed, replicas, router = given.get("seed", 0), given.pop("replicas", 1), given.pop("router", POLICIES[0])
    if replicas < 1:
        raise ConfigError(f"--replicas must be at least 1, got {replicas}")
    if router not in POLICIES:
        raise ConfigError(f"--router must be one of {', '.join(POLICIES)}, got {router!r}")
    trace = given.pop("trace", None)
    window_options, transfer = _window_options(given, seed), take_transfer_options(given)
    if transfer and window_options is not None:
        raise ConfigError(f"{flag(next(iter(transfer)))} is not accepted with --windows")
    if window_options is not None and paths["html"] is not None:
        raise ConfigError("--html shows single requests; it is not accepted with --windows")
    machine, trace_format = machine_from(given, trace), given.get("format")
    arrivals = _arrivals(trace, given, longest(machine, given.get("max_total_tokens")))
    if (path := paths["save_machine"]) is not None:
        write_machine(machine, path)  # as it was measured, before options change its engine
    machine = changed(machine, given)
    split = disaggregation_from(transfer, machine)
    for line in machine.lines():
        print(line)
    if window_options is not None:
        return _windows(machine, arrivals, window_options, replicas, router, paths)
    result = simulated(machine, arrivals, split=split, replicas=replicas, router=router, seed=seed, source=trace)
    if (path := paths["json"]) is not None:
        write_result(result, path)
    if (path := paths["html"]) is not None:
        from sluice.bench.html import page

        write_file(path, page(result, command="simulate", beside=_beside(result, trace, trace_format)).encode())
    print(table(result))
    return 0


def _check_outputs(paths: Mapping[str, Path | None], inputs: Iterable[str | None]) -> None:
    """Refuse to replace a file that is read, or written by another flag."""
    taken = {Path(each).resolve() for each in inputs if each}
    for name, path in paths.items():
        if path is None:
            continue
        if path.resolve() in taken:
            raise ConfigError(f"{flag(name)} {path} would replace another file of this command")
        taken.add(path.resolve())


def _window_options(given: dict[str, Any], seed: int) -> WindowOptions | None:
    """Return which part of the time is simulated; None: all. Takes its options out of `given`."""
    from sluice.sim.windows import WindowOptions

    names = {"window_seconds": "seconds", "warm_up_seconds": "warm_up", "processes": "processes", "epoch_ms": "epoch"}
    found = {field: given.pop(name) for name, field in names.items() if name in given}
    if "windows" not in given:
        _refuse({name: 0 for name, field in names.items() if field in found}, "needs --windows")
        return None
    found["epoch"] = found.get("epoch", 0.0) / 1000
    return WindowOptions(windows=given.pop("windows"), seed=seed, **({"seconds": 60.0} | found))


def _windows(
    machine: Machine,
    arrivals: Sequence[Arrival],
    options: WindowOptions,
    replicas: int,
    router: str,
    paths: Mapping[str, Path | None],
) -> int:
    """Simulate parts of the time and show what they say of the whole. Returns the exit status."""
    import msgspec
    from tqdm import tqdm

    from sluice.bench.results import write_file
    from sluice.sim.routers import sim_router
    from sluice.sim.windows import estimates, simulate_windows, slices_of, table

    with tqdm(total=options.windows, desc="simulating", unit="window", leave=False, disable=None) as bar:
        results = simulate_windows(
            slices_of(arrivals),
            arrivals[-1].time,
            machine,
            options,
            replicas=replicas,
            new_router=partial(sim_router, router, machine.setup, replicas, options.seed),
            on_end=bar.update,
        )
    found = estimates(results, options.seconds, options.seed)
    if (path := paths["json"]) is not None:
        content = {"kind": machine.kind, "model": machine.model, "machine": machine.name, "figures": found}
        write_file(path, msgspec.json.encode(content) + b"\n")
    print(f"{machine.kind}: {table(found, results)}")
    return 0


def _beside(result: Result, trace: str | None, trace_format: str | None) -> Mapping[str, Sequence[Record]] | None:
    """Return a recorded run and its simulation, to be laid over each other; None if the trace is none of our own."""
    from sluice.sim.recorded import recorded_records
    from sluice.sim.traces.reading import detect
    from sluice.tracing.file import TraceReader

    if trace is None or (trace_format or detect(Path(trace))) != "sluice":
        return None
    with TraceReader(Path(trace)) as reader:
        return {"recorded": recorded_records(reader), "simulated": result.runs[0].requests}


def _follow(given: dict[str, Any]) -> int:
    """Run a trace with its own times. Returns the exit status: 1 if something else was planned."""
    from sluice.sim.exact import follow
    from sluice.tracing.file import TraceReader

    trace = given.pop("trace", None)
    if trace is None:
        raise ConfigError("--recorded-times needs a TRACE")
    _refuse(given, "changes nothing with --recorded-times")
    with TraceReader(Path(trace)) as reader:
        found = follow(reader)
    print(f"{trace}: {found.equal} of {found.steps} steps planned as they were")
    if found.divergence is not None:
        print(found.divergence)
    return 0 if found.divergence is None else 1


def simulated(
    machine: Machine,
    arrivals: Sequence[Arrival],
    *,
    split: Disaggregation | None = None,
    replicas: int = 1,
    router: str = POLICIES[0],
    seed: int = 0,
    source: str | None = None,
    shows_progress: bool = True,
) -> Result:
    """Simulate a workload, with a progress bar, and return the result as `sluice bench` does.

    Args:
        split: None: every replica computes prompts and decodes.

    Raises:
        ConfigError: arrivals that are in no order.
    """
    from dataclasses import asdict, replace

    from tqdm import tqdm

    from sluice.bench.records import Run
    from sluice.bench.report import summaries
    from sluice.bench.results import FORMAT, Result, versions
    from sluice.bench.results import machine as this_machine
    from sluice.sim.disaggregate import simulate_split
    from sluice.sim.routers import sim_router
    from sluice.sim.simulate import replicas_of, simulate

    started = datetime.now(UTC).isoformat(timespec="seconds")
    bar = tqdm(
        total=len(arrivals) if split is None else 2 * len(arrivals),
        desc="simulating",
        unit="request",
        mininterval=REDRAW_SECONDS,
        leave=False,
        disable=None if shows_progress else True,
    )
    with bar:
        if split is None:
            engines = replicas_of(machine.setup, machine.world, replicas, depth=machine.depth, seed=seed)
            records = simulate(arrivals, engines, sim_router(router, machine.setup, replicas, seed), bar.update)
        else:
            records = simulate_split(machine, arrivals, split, replicas, router, seed, bar.update)
    settings: dict[str, dict[str, Any]] = {
        "simulation": {
            "source": source,
            "replicas": replicas,
            "router": router,
            "disaggregation": None if split is None else split._asdict(),
            "seed": seed,
            "setup": asdict(machine.setup),
        },
        "workload": {"unique_prompts": False},
    }
    target = {"url": machine.kind, "model": machine.model, "machine": machine.name, "depth": machine.depth}
    result = Result(FORMAT, settings, target, versions(), this_machine(), (Run(started, tuple(records)),))
    return replace(result, summaries=[asdict(summary) for summary in summaries(result)])


def _arrivals(trace: str | None, given: dict[str, Any], most: int | None) -> Sequence[Arrival]:
    """Return what arrives, of at most so many tokens each. Takes its options out of `given`."""
    from sluice.sim.traces.synthetic import synthetic_arrivals

    reading: dict[str, Any] = {name: given.pop(name) for name in ("format", "skip", "max_tokens") if name in given}
    workload = {name: given.pop(name) for name in (*WORKLOAD, "ms_per_token") if name in given}
    if trace is None:
        _refuse(reading, "needs a TRACE")
        return synthetic_arrivals(workload, ms_per_token=workload.pop("ms_per_token", None))
    workload.pop("seed", None)
    _refuse(workload, "describes a synthetic workload; it is not accepted with a TRACE")
    return read_arrivals(trace, reading, most)


def _refuse(given: Mapping[str, Any], why: str) -> None:
    if given:
        raise ConfigError(f"{flag(next(iter(given)))} {why}")

"""`sluice simulate`: from the command line to table and files. The command line imports this for its flags, so it
imports the rest late."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from sluice.bench.options import WorkloadOptions, add_option_group
from sluice.config import ConfigError, flag, options_of
from sluice.config.arguments import add_options
from sluice.config.model import CacheConfig
from sluice.routing.policies import POLICIES
from sluice.sim.inputs import (
    READING,
    add_machine_arguments,
    add_reading_arguments,
    check_lengths,
    longest,
    machine_from,
    read_arrivals,
)
from sluice.sim.transfer import (
    Disaggregation,
    add_disaggregation_arguments,
    disaggregation_from,
    take_transfer_options,
)
from sluice.sim.windows_command import Whole, add_window_arguments, run_windows, streamed, take_options

if TYPE_CHECKING:
    from sluice.bench.records import Record
    from sluice.bench.results import BenchResult
    from sluice.sim.machine import Machine
    from sluice.sim.windows import Between, WindowOptions
    from sluice.sim.workload import Arrival, Longest

WORKLOAD = frozenset(name for name, _ in options_of(WorkloadOptions))
DEPEND_ON_ANSWERS = ("concurrency", "background", "background_prompt_tokens", "background_output_tokens")
"""Options of a workload whose arrivals depend on the answers, which are not known before."""
NO_EFFECT = ("ignore_eos",)
"""Options that change nothing: an answer of a synthetic workload always has its full length."""
AS_MEASURED = "as measured; with --hardware that of a server"
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
    add_window_arguments(parser)
    files = parser.add_argument_group("results")
    files.add_argument("--json", metavar="FILE", help="write settings, metrics and the time of every token to FILE")
    files.add_argument("--html", metavar="FILE", help="write a report as one HTML file")
    add_options(parser, "scheduler", default=AS_MEASURED)
    other = [name for name, _ in options_of(CacheConfig) if name not in POOL]
    add_options(parser, "cache", own=other, default=AS_MEASURED)
    synthetic = parser.add_argument_group("synthetic workload, instead of TRACE")
    add_option_group(synthetic, WorkloadOptions, without=(*DEPEND_ON_ANSWERS, *NO_EFFECT))
    synthetic.add_argument(
        "--ms-per-token",
        type=float,
        metavar="MS",
        help="with --turns: what a token of an answer is expected to take, until the next turn arrives",
    )


class Asked(NamedTuple):
    """What the command line asks for, beside the machine."""

    trace: str | None
    """A file of traffic; None: a synthetic workload."""
    part: WindowOptions | Whole
    replicas: int
    router: str
    seed: int
    transfer: Mapping[str, float]
    """Flags of disaggregated prefill."""
    machine_from: Mapping[str, Any]
    """Flags that name the machine."""


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
    from sluice.sim.machine import write_machine
    from sluice.sim.settings import changed

    if given.pop("recorded_times", False):
        return _follow(given)
    paths = {name: checked_path(flag(name), given.pop(name, None)) for name in ("json", "html", "save_machine")}
    _check_outputs(paths, (given.get("trace"), given.get("calibrate")))
    asked = _asked(given)
    if not isinstance(asked.part, Whole) and paths["html"] is not None:
        raise ConfigError("--html shows single requests; it is not accepted with --windows")
    machine, trace_format = machine_from(given, asked.trace), given.get("format")
    traffic = _traffic(asked, given, longest(machine, given.get("max_total_tokens")))
    if (path := paths["save_machine"]) is not None:
        write_machine(machine, path)  # as it was measured, before options change its engine
    machine = changed(machine, given)
    split = disaggregation_from(asked.transfer, machine)
    for line in machine.lines():
        print(line)
    described = _described(asked, machine, traffic, split)
    if not isinstance(asked.part, Whole):
        assert traffic.source is not None, "windows have a source"
        run_windows(
            machine,
            traffic.source,
            traffic.span,
            asked.part,
            replicas=asked.replicas,
            router=asked.router,
            json=paths["json"],
            settings=described,
        )
        return 0
    result = simulated(machine, traffic.arrivals, asked, split, described)
    _show(result, paths, asked.trace, trace_format)
    return 0


def _asked(given: dict[str, Any]) -> Asked:
    """Take what is asked for out of the flags.

    Raises:
        ConfigError: a value that cannot be, or flags that contradict each other.
    """
    replicas, router = given.pop("replicas", 1), given.pop("router", POLICIES[0])
    if replicas < 1:
        raise ConfigError(f"--replicas must be at least 1, got {replicas}")
    if router not in POLICIES:
        raise ConfigError(f"--router must be one of {', '.join(POLICIES)}, got {router!r}")
    long = [name for name in ("windows", "epoch_ms", "processes") if name in given]
    seed = given.get("seed", 0)
    part, transfer = take_options(given, seed, replicas), take_transfer_options(given)
    if transfer and long:
        raise ConfigError(
            f"{flag(next(iter(transfer)))} is not accepted with {flag(long[0])}: prefill and decode replicas"
            " are simulated on one clock in one process, and their routers look at each request"
        )
    named: dict[str, Any] = {name: given[name] for name in ("calibrate", "hardware", "model") if name in given}
    return Asked(given.pop("trace", None), part, replicas, router, seed, transfer, named)


class Traffic(NamedTuple):
    """What arrives."""

    arrivals: Sequence[Arrival] = ()
    source: Between | None = None
    """Gives the requests of windows; None: all are simulated."""
    span: float = 0.0
    """Seconds of a source."""
    workload: Mapping[str, Any] = {}
    """Resolved options of a synthetic workload, as `sluice bench` writes them."""
    ms_per_token: float | None = None


def _traffic(asked: Asked, given: dict[str, Any], most: Longest | None) -> Traffic:
    """Return what arrives, of at most so many tokens each. Takes its options out of `given`."""
    from dataclasses import asdict

    from sluice.bench.options import resolve_workload
    from sluice.sim.traces.synthetic import synthetic_arrivals
    from sluice.sim.windows import slices_of

    reading: dict[str, Any] = {name: given.pop(name) for name in READING if name in given}
    workload = {name: given.pop(name) for name in (*WORKLOAD, "ms_per_token") if name in given}
    is_whole = isinstance(asked.part, Whole)
    if asked.trace is not None:
        workload.pop("seed", None)
        _refuse(workload, "describes a synthetic workload; it is not accepted with a TRACE")
        if is_whole:
            return Traffic(read_arrivals(asked.trace, reading, most))
        source, span = streamed(asked.trace, reading, most)
        return Traffic(source=source, span=span)
    _refuse(reading, "needs a TRACE")
    ms_per_token = workload.pop("ms_per_token", None)
    arrivals = synthetic_arrivals(workload, ms_per_token=ms_per_token)
    check_lengths(arrivals, most)
    found = Traffic(workload=asdict(resolve_workload(workload)), ms_per_token=ms_per_token)
    if is_whole:
        return found._replace(arrivals=arrivals)
    return found._replace(source=slices_of(arrivals), span=arrivals[-1].time)


def _described(asked: Asked, machine: Machine, traffic: Traffic, split: Disaggregation | None) -> dict[str, Any]:
    """Return what was simulated, for files of results."""
    from dataclasses import asdict

    part = asked.part
    simulation = {
        "source": asked.trace,
        "machine": asked.machine_from or {"calibrate": asked.trace},
        "replicas": asked.replicas,
        "router": asked.router,
        "disaggregation": None if split is None else split._asdict(),
        "part": part._asdict() if isinstance(part, Whole) else asdict(part),
        "ms_per_token": traffic.ms_per_token,
        "seed": asked.seed,
        "setup": asdict(machine.setup),
    }
    return {"simulation": simulation, "workload": dict(traffic.workload) or {"unique_prompts": False}}


def _show(result: BenchResult, paths: Mapping[str, Path | None], trace: str | None, trace_format: str | None) -> None:
    """Write the files that are asked for, and print the table."""
    from sluice.bench.report import table
    from sluice.bench.results import write_file, write_result

    if (path := paths["json"]) is not None:
        write_result(result, path)
    if (path := paths["html"]) is not None:
        from sluice.bench.html import page

        write_file(path, page(result, command="simulate", beside=_beside(result, trace, trace_format)).encode())
    print(table(result))


def _check_outputs(paths: Mapping[str, Path | None], inputs: Iterable[str | None]) -> None:
    """Refuse to replace a file that is read, or written by another flag."""
    taken = {Path(each).resolve() for each in inputs if each}
    for name, path in paths.items():
        if path is None:
            continue
        if path.resolve() in taken:
            raise ConfigError(f"{flag(name)} {path} would replace another file of this command")
        taken.add(path.resolve())


def _beside(result: BenchResult, trace: str | None, trace_format: str | None) -> Mapping[str, Sequence[Record]] | None:
    """Return a recorded run and its simulation, to be laid over each other; None if the trace is none of our own."""
    from sluice.sim.exact import recorded_records
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
    machine: Machine, arrivals: Sequence[Arrival], asked: Asked, split: Disaggregation | None, settings: dict[str, Any]
) -> BenchResult:
    """Simulate a workload, with a progress bar, and return the result as `sluice bench` does.

    Args:
        split: None: every replica computes prompts and decodes.
        settings: that the result shows.

    Raises:
        ConfigError: arrivals that are in no order.
    """
    from dataclasses import asdict, replace

    from tqdm import tqdm

    from sluice.bench.records import Run
    from sluice.bench.report import summaries
    from sluice.bench.results import FORMAT, BenchResult, versions
    from sluice.bench.results import machine as this_machine
    from sluice.sim.disaggregate import simulate_split

    started = datetime.now(UTC).isoformat(timespec="seconds")
    bar = tqdm(
        total=len(arrivals) if split is None else 2 * len(arrivals),
        desc="simulating",
        unit="request",
        mininterval=REDRAW_SECONDS,
        leave=False,
        disable=None,
    )
    with bar:
        if split is None:
            records = _mixed(machine, arrivals, asked, bar.update)
        else:
            records = simulate_split(machine, arrivals, split, asked.replicas, asked.router, asked.seed, bar.update)
    target = {"url": machine.kind, "model": machine.model, "machine": machine.name, "depth": machine.depth}
    result = BenchResult(FORMAT, settings, target, versions(), this_machine(), (Run(started, tuple(records)),))
    return replace(result, summaries=[asdict(summary) for summary in summaries(result)])


def _mixed(
    machine: Machine, arrivals: Sequence[Arrival], asked: Asked, on_end: Callable[[], object]
) -> Sequence[Record]:
    """Simulate replicas that compute prompts and decode."""
    from sluice.sim.fleet import LocalFleet, ReplicaSpec, in_processes
    from sluice.sim.routers import publish_every, sim_router
    from sluice.sim.simulate import in_due_order, run

    assert isinstance(asked.part, Whole), "windows are simulated elsewhere"
    every = publish_every(asked.router)
    spec = ReplicaSpec(machine.setup, machine.world, asked.replicas, machine.depth, asked.seed, publish_every=every)
    router = sim_router(asked.router, machine.setup, asked.replicas, asked.seed)
    if asked.part.processes == 1:
        fleet = LocalFleet(spec.make(range(spec.replicas)))
        return in_due_order(list(run(arrivals, fleet, router, on_end, asked.part.epoch)))
    with in_processes(spec, asked.part.processes) as groups:
        return in_due_order(list(run(arrivals, groups, router, on_end, asked.part.epoch)))


def _refuse(given: Mapping[str, Any], why: str) -> None:
    if given:
        raise ConfigError(f"{flag(next(iter(given)))} {why}")

"""The part of `sluice simulate` for long traffic: windows of a file that is read and not kept, and several processes.

The command line imports this for its flags, so it imports the rest late.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from sluice.config import ConfigError, flag
from sluice.sim.inputs import note_skipped, read_options

if TYPE_CHECKING:
    from sluice.sim.machine import Machine
    from sluice.sim.windows import Between, WindowOptions
    from sluice.sim.workload import Longest

NAMES = {"window_seconds": "seconds", "warm_up_seconds": "warm_up"}


def add_window_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the flags."""
    group = parser.add_argument_group("long traffic")
    group.add_argument(
        "--windows", type=int, metavar="N", help="simulate N parts of the time only, and show intervals (default: all)"
    )
    group.add_argument("--window-seconds", type=float, metavar="S", help="length of a part (default: 60)")
    group.add_argument(
        "--warm-up-seconds", type=float, metavar="S", help="what is simulated before and behind a part (default: 60)"
    )
    group.add_argument(
        "--processes",
        type=int,
        metavar="N",
        help="simulate so many parts at once; without --windows the replicas are shared out among so many processes,"
        " which needs --epoch-ms (default: 1)",
    )
    group.add_argument(
        "--epoch-ms",
        type=float,
        metavar="MS",
        help="time after which the router sees the replicas again (default: 0, at each request)",
    )


class Whole(NamedTuple):
    """How all of the traffic is simulated."""

    epoch: float = 0.0
    """Seconds after which the router sees the replicas again; 0: at each request."""
    processes: int = 1
    """Processes that the replicas are shared out among; more than one need epochs."""


def take_options(given: dict[str, Any], seed: int, replicas: int) -> WindowOptions | Whole:
    """Return which part of the time is simulated, and how. Takes the flags out of `given`.

    Raises:
        ConfigError: values that cannot be, or that contradict each other.
    """
    from sluice.sim.windows import WindowOptions

    found = {field: given.pop(name) for name, field in NAMES.items() if name in given}
    epoch, processes = given.pop("epoch_ms", 0.0) / 1000, given.pop("processes", 1)
    if "windows" in given:
        windows = given.pop("windows")
        return WindowOptions(
            windows=windows, seed=seed, epoch=epoch, processes=processes, **({"seconds": 60.0} | found)
        )
    for name, field in NAMES.items():
        if field in found:
            raise ConfigError(f"{flag(name)} needs --windows")
    if not 0 <= epoch < math.inf:
        raise ConfigError(f"--epoch-ms must be at least 0, got {1000 * epoch:g}")
    if not 1 <= processes <= replicas:
        raise ConfigError(
            f"--processes must be from 1 to the {replicas} of --replicas without --windows, got {processes}"
        )
    if processes > 1 and not epoch:
        raise ConfigError(
            f"--processes {processes} needs --windows, or --epoch-ms: a router cannot look into other processes at each"
            " request"
        )
    return Whole(epoch, processes)


def streamed(trace: str, given: dict[str, Any], most: Longest | None) -> tuple[Between, float]:
    """Return the requests of a file, which is read now to check it, and again for the windows, and its seconds. Takes
    the flags of reading out of `given`.

    Raises:
        ConfigError: a flag is wrong.
        TraceError: the file is broken.
    """
    from tqdm import tqdm

    from sluice.sim.traces.reading import streamed_trace, survey

    options = read_options(given, most)
    with tqdm(desc="reading", unit="request", mininterval=0.2, leave=False, disable=None) as bar:
        found = survey(Path(trace), options, bar.update)
    note_skipped(trace, found.skipped)
    return streamed_trace(Path(trace), options), found.span


def run_windows(
    machine: Machine,
    source: Between,
    span: float,
    options: WindowOptions,
    *,
    replicas: int,
    router: str,
    json: Path | None,
    settings: Mapping[str, Any],
) -> None:
    """Simulate parts of the time and show what they say of the whole.

    Args:
        span: seconds of the whole time.
        json: file to write the figures to.
        settings: to be written beside them.
    """
    import msgspec
    from tqdm import tqdm

    from sluice.bench.results import write_file
    from sluice.sim.routers import publish_every, sim_router
    from sluice.sim.windows import estimates, simulate_windows, table

    with tqdm(total=options.windows, desc="simulating", unit="window", leave=False, disable=None) as bar:
        results = simulate_windows(
            source,
            span,
            machine,
            options,
            replicas=replicas,
            new_router=partial(sim_router, router, machine.setup, replicas, options.seed),
            publish_every=publish_every(router),
            on_end=bar.update,
        )
    found = estimates(results, options.seconds, options.seed)
    if json is not None:
        content = {
            "kind": machine.kind,
            "model": machine.model,
            "machine": machine.name,
            "settings": settings,
            "figures": found,
        }
        write_file(json, msgspec.json.encode(content) + b"\n")
    print(f"{machine.kind}: {table(found, results)}")

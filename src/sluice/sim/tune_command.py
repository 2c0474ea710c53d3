"""`sluice tune`: from the command line to a table of settings. The command line imports this for its flags, so it
imports the rest late."""

from __future__ import annotations

import argparse
import math
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sluice.config import ConfigError
from sluice.routing.policies import POLICIES
from sluice.sim.inputs import add_machine_arguments, add_reading_arguments, longest, machine_from, read_arrivals

if TYPE_CHECKING:
    from sluice.sim.machine import Machine
    from sluice.sim.slo import Figure, Slo
    from sluice.sim.tune import CandidateOutcome, Tuned

MOST_SETTINGS = 200
REPEATS = 5
BOUNDS_SHOWN = 2
FRONTIER_SHOWN = 10
EXIT_MISSED = 1
MODEL = "MODEL"
"""Stands for the folder of a model: traces know only the name that it was served by."""


def add_tune_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the flags of `sluice tune`."""
    parser.add_argument("trace", metavar="TRACE", help="a file of traffic")
    parser.add_argument(
        "--slo",
        required=True,
        metavar="LIST",
        help="objectives such as ttft_p95<2s,itl_p99<200ms: ttft, itl, tpot or e2e; mean, max, or p50 to p99.9",
    )
    parser.add_argument(
        "--search",
        action="append",
        metavar="NAME=VALUES",
        help="values of an option to try, such as chunked_prefill_size=64,128; may be repeated, all combinations are"
        " tried and other options stay as measured (default: chunks or ITL targets, partial prefills, running requests,"
        " and what prefixes call for)",
    )
    parser.add_argument(
        "--replicas", metavar="LIST", help="numbers of replicas to try, smallest first, such as 1,2,4 (default: 1)"
    )
    parser.add_argument(
        "--router", metavar="NAME", help=f"how replicas are chosen: {', '.join(POLICIES)} (default: {POLICIES[0]})"
    )
    parser.add_argument(
        "--settings", type=int, metavar="N", help=f"most settings to try, drawn at random (default: {MOST_SETTINGS})"
    )
    parser.add_argument(
        "--repeats", type=int, metavar="N", help=f"runs of each of the best settings (default: {REPEATS})"
    )
    parser.add_argument("--seed", type=int, metavar="N", help="random seed of what is tried (default: 0)")
    add_reading_arguments(parser)
    add_machine_arguments(parser)


def run_tune(given: dict[str, Any]) -> int:
    """Search for settings and show them. Returns 0 if the objectives are met, else 1.

    Args:
        given: the flags of the command line, by name.

    Raises:
        ConfigError: the command line is wrong.
        TraceError: a file of traffic is broken.
    """
    from tqdm import tqdm

    from sluice.sim.candidates import candidates, default_grid, given_grid
    from sluice.sim.slo import parse_slo
    from sluice.sim.tune import Tuner

    slo, model = parse_slo(given["slo"]), _folder(given)
    replicas = _numbers(given.get("replicas", "1"))
    router, seed = given.get("router", POLICIES[0]), given.get("seed", 0)
    most, repeats = given.get("settings", MOST_SETTINGS), given.get("repeats", REPEATS)
    for name, value in (("--settings", most), ("--repeats", repeats)):
        if value < 1:
            raise ConfigError(f"{name} must be at least 1, got {value}")
    if router not in POLICIES:
        raise ConfigError(f"--router must be one of {', '.join(POLICIES)}, got {router!r}")
    trace = given["trace"]
    machine = machine_from(given, trace)
    arrivals = list(read_arrivals(trace, given, longest(machine)))
    texts = given.get("search", [])
    grid = given_grid(texts, machine) if texts else default_grid(machine, arrivals, slo)
    refused: list[ConfigError] = []
    found = candidates(machine, grid, most, seed, on_refused=refused.append)
    if refused:
        print(f"note: {len(refused)} combinations cannot be honoured and were left out, such as: {refused[0]}")
    for line in machine.lines():
        print(line)
    with tqdm(desc="simulating", unit="run", mininterval=0.2, leave=False, disable=None) as bar:
        tuned = Tuner(arrivals, slo, router=router, repeats=repeats, on_run=bar.update).tune(found, replicas)
    print(f"{len(arrivals)} requests in {arrivals[-1].time:.0f} s; {tuned.tried} settings, {tuned.requests} requests")
    print(report(tuned, slo, machine, model))
    return 0 if tuned.pick.is_met else EXIT_MISSED


def _numbers(text: str) -> list[int]:
    try:
        found = sorted({int(part) for part in text.split(",")})
    except ValueError:
        found = [0]
    if found[0] < 1:
        raise ConfigError(f"--replicas must be integers of at least 1 with commas between them, got {text!r}")
    return found


def report(tuned: Tuned, slo: Slo, machine: Machine, model: str = MODEL) -> str:
    """Return what was found, as text.

    Args:
        machine: that was simulated.
        model: its folder.
    """
    pick = tuned.pick
    mark = "" if machine.is_measured else "predicted, not measured: "
    lines = ["", mark + _verdict(pick, slo), "", "use:", f"  {command(pick, model)}"]
    lines += [
        "",
        *_sureness(tuned, machine),
        "",
        f"frontier ({mark}mean of {len(pick.runs)} repeats, least-greatest):",
    ]
    shown = tuned.frontier()[:FRONTIER_SHOWN]
    for each in (pick, tuned.measured):
        if all(each is not other for other in shown):
            shown.append(each)
    lines += [_row(each, slo, "->" if each is pick else "") for each in shown]
    return "\n".join(lines)


def command(outcome: CandidateOutcome, model: str = MODEL) -> str:
    """Return the command line that serves with an outcome's settings, and with all else as it was measured.

    Args:
        model: its folder.
    """
    from sluice.sim.candidates import HOST_TOKENS, argument
    from sluice.sim.serving_flags import serving_options

    machine = outcome.candidate.machine
    options, tiers = serving_options(machine), machine.setup.tiers
    options |= {name: value for name, value in outcome.candidate.settings.items() if name == "max_total_tokens"}
    if tiers.host_pages:
        options[HOST_TOKENS] = tiers.host_pages * machine.setup.page_size
    parts = ["sluice serve", model, *(argument(name, value) for name, value in options.items())]
    notes = ["disk tier as measured"] if tiers.disk_pages else []
    notes += ["offloading as measured"] if machine.setup.offload is not None else []
    notes += [f"on each of {outcome.replicas} replicas"] if outcome.replicas > 1 else []
    return " ".join(parts) + (f"   # {', '.join(notes)}" if notes else "")


def _folder(given: Mapping[str, Any]) -> str:
    """Return the folder of the model that the flags name; `MODEL` if they name none."""
    named = (given.get(name) for name in ("model", "calibrate"))
    return next((each for each in named if each and Path(each).is_dir()), MODEL)


def _verdict(pick: CandidateOutcome, slo: Slo) -> str:
    worst = slo.worst(pick.means())
    share = 100 * pick.means()[worst.figure] / worst.limit
    if pick.is_met:
        return f"{slo}: met with {_replicas(pick)}; nearest to its limit is {worst} ({share:.0f}% of it)"
    figures = ",".join(
        f"{each.figure}<{_above(max(each.limit, pick.figure(each.figure)[2]))}" for each in slo.objectives
    )
    return (
        f"{slo}: no setting tried meets it in every repeat; the nearest that is met: {figures} with {_replicas(pick)}"
    )


def _replicas(outcome: CandidateOutcome) -> str:
    return f"{outcome.replicas} replica{'s' if outcome.replicas > 1 else ''}"


def _sureness(tuned: Tuned, machine: Machine) -> list[str]:
    """Return how sure the pick is, and what it is better than."""
    pick, measured = tuned.pick, tuned.measured
    binds = ", ".join(
        f"{bound} {100 * share:.0f}% of steps" for bound, share in list(pick.bounds.items())[:BOUNDS_SHOWN]
    )
    lines = [
        f"binds: {binds or 'nothing kept steps from holding more'}",
        f"sure:  objectives met in {pick.num_met} of {len(pick.runs)} repeats",
    ]
    if not machine.world.residuals:
        lines.append("       the machine has no residuals, so repeats do not differ and say nothing")
    if measured is not pick:
        engine = "as measured" if machine.is_measured else "with all options left open"
        lines.append(f"       against the engine {engine}: {_difference(pick, measured)}")
    others = [each for each in tuned.outcomes if each.replicas == pick.replicas and each.runs != pick.runs]
    others = [each for each in others if each is not measured]
    if others:
        lines.append(f"       against the next best: {_difference(pick, others[0])}")
    return lines


def _difference(pick: CandidateOutcome, other: CandidateOutcome) -> str:
    """Return by how much the worst figure differs, repeat by repeat, and by how much that varies."""
    if not all(map(math.isfinite, (*pick.excesses, *other.excesses))):
        return "requests failed, so there is no figure to compare"
    ratios = sorted(ours / theirs for ours, theirs in zip(pick.excesses, other.excesses, strict=True) if theirs)
    if not ratios:
        return "no difference"
    low, high = (100 * (ratio - 1) for ratio in (ratios[0], ratios[-1]))
    note = "" if low > 0 or high < 0 else ": the repeats do not tell them apart"
    return f"worst figure {low:+.0f}% to {high:+.0f}% in the same repeats{note}"


def _row(outcome: CandidateOutcome, slo: Slo, mark: str) -> str:
    figures = "  ".join(f"{each.figure} {_spread(outcome, each.figure)}" for each in slo.objectives)
    bound = next(iter(outcome.bounds), "nothing")
    met = f"{outcome.num_met}/{len(outcome.runs)} met"
    return f"{mark:2} {outcome.replicas}x  {figures}  {met}  {bound}  {outcome.candidate.arguments()}"


def _spread(outcome: CandidateOutcome, figure: Figure) -> str:
    mean, low, high = outcome.figure(figure)
    return f"{_seconds(mean)} ({_seconds(low)}-{_seconds(high)})"


def _above(seconds: float) -> str:
    """Return a limit that is not below a time."""
    return "never" if seconds == float("inf") else _seconds(math.ceil(seconds * 100) / 100)


def _seconds(seconds: float) -> str:
    return "never" if seconds == float("inf") else f"{seconds:.2f}s" if seconds >= 1 else f"{1000 * seconds:.0f}ms"

"""What `sluice simulate` and `sluice tune` are given: a machine, and a file of traffic.

The command line imports this for its flags, so it imports the rest late.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sluice.config import ConfigError

if TYPE_CHECKING:
    from sluice.sim.machine import Machine
    from sluice.sim.traces.reading import ReadOptions
    from sluice.sim.workload import Arrival, Longest


def add_machine_arguments(parser: argparse.ArgumentParser) -> argparse._ArgumentGroup:
    """Add the flags that say what is simulated. Returns their group."""
    machine = parser.add_argument_group("machine")
    machine.add_argument(
        "--calibrate",
        metavar="SOURCE",
        help="take the time of steps from a trace of --trace or a file of --save-machine, or measure them: at the URL"
        ' of a server with --trace, or with a model in this process ("": the default model) (default: from TRACE)',
    )
    machine.add_argument(
        "--hardware",
        metavar="NAME",
        help="predict the time of steps on a machine that is not at hand: h100 or another name, or"
        " FLOPS,BANDWIDTH,MEMORY; needs --model",
    )
    machine.add_argument(
        "--model", metavar="MODEL", help="folder with the config.json of the model, or a GGUF file, for --hardware"
    )
    return machine


READING = ("format", "trace_block_size", "skip", "max_tokens")
"""The flags of `add_reading_arguments`."""


def add_reading_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the flags that say how a file of traffic is read."""
    reading = parser.add_argument_group("reading a trace")
    reading.add_argument("--format", metavar="NAME", help="format of TRACE (default: as its first line looks)")
    blocks = "tokens of a block of hash_ids in TRACE (default: mooncake 512, bailian 16)"
    reading.add_argument("--trace-block-size", type=int, metavar="N", help=blocks)
    reading.add_argument(
        "--skip", metavar="LIST", help="leave out rows that are: empty, too-long (default: none, they are refused)"
    )
    reading.add_argument(
        "--max-tokens", type=int, metavar="N", help="what clients ask for, if TRACE does not say (default: the answer)"
    )


def machine_from(given: dict[str, Any], trace: str | None) -> Machine:
    """Return the machine that is asked for. Takes its options out of `given`.

    Raises:
        ConfigError: the flags name none, or one of several pipeline stages.
        TraceError: it is to be fitted to a trace that is broken, or too short.
    """
    machine = _named_machine(given, trace)
    if (stages := machine.setup.limits.pipeline_stages) > 1:
        raise ConfigError(
            f"{machine.model} was measured with {stages} pipeline stages, whose steps overlap; a simulation has one"
            " after the other (--recorded-times follows such a trace)"
        )
    if (block_size := machine.setup.limits.block_size) > 0:
        raise ConfigError(
            f"{machine.model} fills in blocks of {block_size} tokens in as many passes as they take, which a simulation"
            " does not know (--recorded-times follows such a trace)"
        )
    return machine


def _named_machine(given: dict[str, Any], trace: str | None) -> Machine:
    from sluice.sim.hardware import predicted_machine
    from sluice.sim.machine import read_machine
    from sluice.sim.measure import machine_of
    from sluice.sim.traces.reading import detect

    source, hardware, model = (given.pop(name, None) for name in ("calibrate", "hardware", "model"))
    if hardware is not None:
        if source is not None:
            raise ConfigError(f"--hardware {hardware} and --calibrate {source} both say how long steps take")
        if model is None:
            raise ConfigError(
                f"--hardware {hardware} needs --model: a folder with the config.json of a model, or a GGUF file"
            )
        return predicted_machine(hardware, Path(model))
    if model is not None:
        raise ConfigError(f"--model {model} needs --hardware; --calibrate takes a model to be measured here")
    if source is not None:
        return machine_of(source)
    if trace is None:
        raise ConfigError("a synthetic workload needs --calibrate or --hardware")
    trace_format = given.get("format") or detect(Path(trace))
    if trace_format != "sluice":
        raise ConfigError(
            f"{trace} ({trace_format}) does not say how long steps take; give --hardware, or --calibrate with a trace"
            " of --trace, a file of --save-machine, the URL of a server, or a model"
        )
    return read_machine(Path(trace))


def longest(machine: Machine, pool_tokens: int | None = None) -> Longest | None:
    """Return the most tokens that a request may have; None: any.

    Args:
        pool_tokens: of a replica; None: as it was measured.
    """
    from sluice.sim.workload import Longest

    setup, found = machine.setup, list[Longest]()
    if machine.max_model_len:
        found.append(Longest(machine.max_model_len, "the model's context"))
    if setup.offload is None:
        found.append(Longest(pool_tokens or setup.num_pages * setup.page_size, "the KV pool"))
    return min(found, default=None)


def check_lengths(arrivals: Sequence[Arrival], most: Longest | None) -> None:
    """Check the requests of a synthetic workload, in which none is left out.

    Raises:
        ConfigError: one is longer than the engine takes.
    """
    for number, each in enumerate(arrivals, start=1):
        if most is not None and each.prompt.length + each.max_tokens > most.tokens:
            raise ConfigError(
                f"request {number} of the synthetic workload has {each.prompt.length} prompt tokens and asks for"
                f" {each.max_tokens}; together they must be at most {most.tokens} ({most.why})"
            )


def read_arrivals(trace: str, given: Mapping[str, Any], most: Longest | None) -> Sequence[Arrival]:
    """Return what a file of traffic holds. Notes on standard error what was left out.

    Args:
        given: flags of `add_reading_arguments`, by name.
        most: tokens of a request; None: any.

    Raises:
        ConfigError: a flag is wrong.
        TraceError: the file is broken.
    """
    from sluice.sim.traces.reading import read_trace

    found = read_trace(Path(trace), read_options(given, most))
    note_skipped(trace, found.skipped)
    return found.arrivals


def read_options(given: Mapping[str, Any], most: Longest | None) -> ReadOptions:
    """Return how a file of traffic is read (see `read_arrivals`).

    Raises:
        ConfigError: a flag is wrong.
    """
    from sluice.sim.traces.reading import SKIPPABLE, ReadOptions

    skip = frozenset(filter(None, given.get("skip", "").split(",")))
    if wrong := skip - set(SKIPPABLE):
        raise ConfigError(f"--skip takes {', '.join(SKIPPABLE)}, got {sorted(wrong)[0]!r}")
    max_tokens = given.get("max_tokens")
    if max_tokens is not None and max_tokens < 1:
        raise ConfigError(f"--max-tokens must be at least 1, got {max_tokens}")
    block_size = given.get("trace_block_size")
    if block_size is not None and block_size < 1:
        raise ConfigError(f"--trace-block-size must be at least 1, got {block_size}")
    return ReadOptions(given.get("format"), block_size, skip, most, max_tokens)


def note_skipped(trace: str, skipped: Mapping[str, int]) -> None:
    """Say on standard error which rows were left out."""
    for reason, count in skipped.items():
        print(f"note: {count} rows of {trace} are {reason} and were left out", file=sys.stderr)

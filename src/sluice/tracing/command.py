"""`sluice trace` and `sluice replay`. The command line imports this for their flags, so it imports the rest late."""

from __future__ import annotations

import argparse
import json
import math
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any, TextIO

from sluice.config import ConfigError

GAP_MS = 100.0


def add_trace_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("file", metavar="FILE", help="a trace file, written by --trace")
    parser.add_argument(
        "--gap-ms",
        type=float,
        metavar="X",
        help=f"list gaps between two tokens that are longer than this (default: {GAP_MS:g})",
    )
    parser.add_argument("--requests", action="store_true", help="also print a line for each request")
    parser.add_argument("--json", action="store_true", dest="as_json", help="print one JSON object")
    parser.add_argument("--perfetto", metavar="OUT", help="also write a timeline for https://ui.perfetto.dev")


def add_replay_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("file", metavar="FILE", help="a trace file, written by --trace")


def run_trace(given: dict[str, Any]) -> int:
    """Show a trace, and write its timeline if asked to. Returns the exit status.

    Args:
        given: the flags that were given, by name.

    Raises:
        ConfigError: a wrong command line, or a timeline that cannot be written.
        TraceError: the file is no trace.
        OSError: the disk is full.
    """
    from sluice.tracing.file import TraceReader
    from sluice.tracing.perfetto import write_perfetto
    from sluice.tracing.run import read_run
    from sluice.tracing.summary import report, summarize

    path, gap_ms = Path(given["file"]), given.get("gap_ms", GAP_MS)
    out = Path(given["perfetto"]) if "perfetto" in given else None
    if not (math.isfinite(gap_ms) and gap_ms >= 0):
        raise ConfigError(f"--gap-ms must be a number of at least 0, got {gap_ms}")
    if out is not None and out.exists() and path.exists() and out.samefile(path):
        raise ConfigError(f"--perfetto {out} is the trace itself; name another file")
    with TraceReader(path) as trace:
        run = read_run(trace)
        _note_if(trace.is_truncated, path, "trace")
        summary = summarize(trace.header, run, gap_ms, truncated=trace.is_truncated)
    if given.get("as_json", False):
        print(json.dumps(asdict(summary), indent=2))
    else:
        print(report(summary, table=given.get("requests", False)))
    if out is not None:
        with TraceReader(path) as trace, _writing(out) as file:
            count = write_perfetto(trace.header, trace, file)
        print(f"{count} events in {out}: open it in https://ui.perfetto.dev", file=sys.stderr)
    return 0


def _writing(path: Path) -> TextIO:
    """
    Raises:
        ConfigError: the file cannot be written.
    """
    try:
        return path.open("w", encoding="utf-8")
    except OSError as error:
        raise ConfigError(
            f"--perfetto must name a file that can be written, got {str(path)!r}: {error.strerror}"
        ) from error


def run_replay(given: dict[str, Any]) -> int:
    """Make a trace's calls to the same scheduler. Returns the exit status: 1 if it planned something else.

    Raises:
        TraceError: the file is no trace, or cannot be replayed.
    """
    from sluice.tracing.file import TraceReader
    from sluice.tracing.replay import replay

    path = Path(given["file"])
    with TraceReader(path) as trace:
        replayed = replay(trace)
        _note_if(trace.is_truncated, path, "replay")
    if replayed.divergence is not None:
        print(f"{path} diverges after {replayed.steps} equal steps: {replayed.divergence}")
        return 1
    print(f"{path}: {replayed.steps} steps planned again, every plan equal byte for byte ({replayed.calls} calls)")
    if replayed.unended:
        print(f"{replayed.unended} calls behind a step that never ended were left out")
    return 0


def _note_if(is_truncated: bool, path: Path, command: str) -> None:
    if is_truncated:
        print(f"sluice {command}: note: {path} ends within a line; everything before it is used", file=sys.stderr)

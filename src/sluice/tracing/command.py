"""`sluice trace` and `sluice replay`: from the command line to text."""

from __future__ import annotations

import json
import math
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any, TextIO

from sluice.config import ConfigError
from sluice.tracing.options import GAP_MS
from sluice.tracing.perfetto import write_perfetto
from sluice.tracing.reader import TraceReader
from sluice.tracing.replay import replay
from sluice.tracing.report import report
from sluice.tracing.run import read_run
from sluice.tracing.summary import summarize


def run_trace(given: dict[str, Any]) -> int:
    """Show a trace, and write its timeline if asked to. Returns the exit status.

    Args:
        given: the flags that were given, by name.

    Raises:
        ConfigError: a wrong command line, a timeline that cannot be written.
        TraceError: a file that is no trace.
        OSError: the disk is full.
    """
    path, gap_ms = Path(given["file"]), given.get("gap_ms", GAP_MS)
    out = Path(given["perfetto"]) if "perfetto" in given else None
    if not (math.isfinite(gap_ms) and gap_ms >= 0):
        raise ConfigError(f"--gap-ms must be a number of at least 0, got {gap_ms}")
    if out is not None and out.exists() and path.exists() and out.samefile(path):
        raise ConfigError(f"--perfetto {out} is the trace itself; name another file")
    with TraceReader(path) as trace:
        run = read_run(trace)
        _note(trace, path, "trace")
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
        ConfigError: there can be no such file.
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
        TraceError: a file that is no trace, or one that cannot be replayed.
    """
    path = Path(given["file"])
    with TraceReader(path) as trace:
        replayed = replay(trace)
        _note(trace, path, "replay")
    if replayed.divergence is not None:
        print(f"{path} diverges after {replayed.steps} equal steps: {replayed.divergence}")
        return 1
    print(f"{path}: {replayed.steps} steps planned again, every plan equal byte for byte ({replayed.calls} calls)")
    if replayed.unended:
        print(f"{replayed.unended} calls behind a step that never ended were left out")
    return 0


def _note(trace: TraceReader, path: Path, command: str) -> None:
    if trace.is_truncated:
        print(f"sluice {command}: note: {path} ends within a line; everything before it is used", file=sys.stderr)

"""Measures the rows that one start of the engines serves, in turns, with all engines up."""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path

from benchmarks.cpu.contenders import Contender
from benchmarks.cpu.machine import Probe
from benchmarks.cpu.record import Measured, Record, load_average
from benchmarks.cpu.rows import Row, Session
from benchmarks.peers.environment import SetupError
from benchmarks.peers.measure import Send, running
from benchmarks.peers.peer import Job
from sluice.bench import BenchError
from sluice.bench.measure import REPEAT_SEED
from sluice.bench.report import summaries
from sluice.bench.results import read_result
from sluice.config import ConfigError

WARM_UP = -1
"""The turn before the first, which is not recorded: engines compile and capture what they first meet."""


def measure_session(
    record: Record, session: Session, contenders: Sequence[Contender], turns: int, probe: Probe
) -> None:
    """Start the engines, measure the turns that are still missing, and stop them.

    A failure is recorded for the turn, and the others go on.
    """
    missing = list(_missing(record, session, contenders, turns))
    if not missing:
        return
    with ExitStack() as stack, tempfile.TemporaryDirectory() as folder:
        engines = _started(stack, session, [contender for _, _, contender in missing])
        for turn, row, contender in [*_warm_up(missing), *missing]:
            print(f"turn {turn + 1}: {row.name}: {contender.label}", file=sys.stderr, flush=True)
            engine = engines[contender]
            if isinstance(engine, str):
                measured = Measured({}, None, load_average(), engine)
            else:
                measured = _measured(record, row, contender, engine, _job(row, session, turn, Path(folder)), probe)
            if turn != WARM_UP:
                record.add(row.name, contender.label, measured)


def _missing(
    record: Record, session: Session, contenders: Sequence[Contender], turns: int
) -> Iterator[tuple[int, Row, Contender]]:
    """Yield the measurements to make, in order. Each turn begins with another contender."""
    for turn in range(turns):
        for row in session.rows:
            first = turn % len(contenders)
            for contender in (*contenders[first:], *contenders[:first]):
                is_wanted = contender.is_ours or not row.only_ours
                if is_wanted and not record.has(row.name, contender.label, turn):
                    yield turn, row, contender


def _warm_up(missing: Sequence[tuple[int, Row, Contender]]) -> list[tuple[int, Row, Contender]]:
    return [(WARM_UP, row, contender) for row, contender in dict.fromkeys(item[1:] for item in missing)]


def _started(stack: ExitStack, session: Session, contenders: Sequence[Contender]) -> Mapping[Contender, Send | str]:
    """Return the running engines; for one that does not start, the reason."""
    found: dict[Contender, Send | str] = {}
    for contender in dict.fromkeys(contenders):
        print(f"starting {contender.label}", file=sys.stderr, flush=True)
        try:
            found[contender] = stack.enter_context(running(contender.peer, contender.settings(session.settings)))
        except (SetupError, ConfigError) as error:
            print(f"{contender.label}: {error}", file=sys.stderr)
            found[contender] = str(error)
    return found


def _job(row: Row, session: Session, turn: int, folder: Path) -> Job:
    given = {**row.given, "seed": REPEAT_SEED * (turn + 1)}
    return Job(given, folder / "result.json", session.settings.threads - 1 if row.is_disturbed else None)


def _measured(record: Record, row: Row, contender: Contender, send: Send, job: Job, probe: Probe) -> Measured:
    rates, load = probe.rates(), load_average()
    try:
        if (status := send(job)) != 0:
            return Measured({}, rates, load, f"ended with status {status}")
        result = read_result(job.out)
    except (BenchError, ConfigError) as error:
        print(f"{contender.label}: {error}", file=sys.stderr)
        return Measured({}, rates, load, str(error))
    summary = summaries(result)[0]
    if summary.failed:
        return Measured({}, rates, load, f"{summary.failed} of {summary.requests} requests failed")
    memory = result.target.get("server_info", {}).get("memory", {})
    record.describe(contender.label, result.target["peer"], memory.get("weights_bytes"))
    return Measured({number.name: number.of(summary) for number in row.numbers}, rates, load)

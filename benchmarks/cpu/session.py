"""Measures the rows that one start of an engine serves."""

from __future__ import annotations

import sys
import tempfile
from dataclasses import replace
from pathlib import Path

from benchmarks.cpu.record import Record
from benchmarks.cpu.rows import Row, Session
from benchmarks.peers.environment import SetupError
from benchmarks.peers.measure import measure_jobs, peer_named
from benchmarks.peers.peer import Job
from sluice.bench import BenchError
from sluice.bench.measure import REPEAT_SEED
from sluice.bench.metrics import Summary
from sluice.bench.report import summaries
from sluice.bench.results import read_result
from sluice.config import ConfigError


def measure_session(record: Record, session: Session, peer: str, turn: int) -> None:
    """Measure the rows that this turn of the engine still lacks. A failure is recorded, and the others go on."""
    rows = [row for row in session.rows if not record.has(row.name, peer, turn)]
    if not rows:
        return
    print(f"turn {turn + 1}: {peer}: {', '.join(row.name for row in rows)}", file=sys.stderr, flush=True)
    with tempfile.TemporaryDirectory() as folder:
        jobs = [_job(row, session, turn, Path(folder)) for row in rows]
        error = _measured(peer, session, jobs)
        for row, job in zip(rows, jobs, strict=True):
            if job.out.exists():
                result = read_result(job.out)
                record.add(row.name, peer, _values(row, summaries(result)[0]))
                record.describe(peer, result.target, result.versions)
            else:
                record.add(row.name, peer, {}, error or "not measured")
    record.save()


def _job(row: Row, session: Session, turn: int, folder: Path) -> Job:
    given = {**row.given, "seed": REPEAT_SEED * turn}
    return Job(given, folder / f"{row.name}.json", session.settings.threads - 1 if row.is_disturbed else None)


def _measured(peer: str, session: Session, jobs: list[Job]) -> str | None:
    try:
        settings = replace(session.settings, more=session.ours) if peer == "sluice" else session.settings
        peer_named(peer).prepare(settings)
        status = measure_jobs(peer, settings, jobs)
    except (BenchError, ConfigError, SetupError) as error:
        print(f"{peer}: {error}", file=sys.stderr)
        return str(error)
    return None if status == 0 else f"ended with status {status}"


def _values(row: Row, summary: Summary) -> dict[str, float | None]:
    return {number.name: number.of(summary) for number in row.numbers}

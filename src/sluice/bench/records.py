"""What a measurement leaves: every request with the time of every token, and all that is needed to read it later.

Times are seconds after the run's start, on the client's clock. From these alone come table, report and comparison.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from sluice.bench.answers import Arrival, CountedBy, Failure
from sluice.bench.driver import Attempt
from sluice.bench.errors import BenchError

FORMAT = "sluice-bench-1"
DECIMALS = 6
"""Times are kept to the microsecond."""


@dataclass(frozen=True, slots=True)
class Record:
    """One request."""

    session: int
    turn: int
    background: bool
    kind: str
    """short, long, or what an arrivals file says"""
    prompt_tokens: int
    """As the target counts them, else as planned."""
    max_tokens: int
    due: float
    """When it was to be sent: latencies count from here."""
    sent: float
    """When the client turned to it. `sent - due` is the client's own lateness, or the wait for a free place."""
    accepted: float | None
    ended: float
    arrivals: tuple[Arrival, ...]
    counted_by: CountedBy = CountedBy.EVENTS
    cached_tokens: int | None = None
    finish_reason: str | None = None
    failure: Failure | None = None

    @property
    def failed(self) -> bool:
        return self.failure is not None

    @property
    def num_tokens(self) -> int:
        return sum(arrival.tokens for arrival in self.arrivals)

    @property
    def first_token(self) -> float | None:
        return self.arrivals[0].at if self.arrivals else None

    @property
    def last_token(self) -> float | None:
        return self.arrivals[-1].at if self.arrivals else None


@dataclass(frozen=True, slots=True)
class Run:
    """One measurement."""

    started: str
    """Date and time, ISO 8601, UTC."""
    requests: tuple[Record, ...]
    lag: tuple[float, ...] = ()
    """Seconds by which the client's event loop woke up late, one value each 50 ms."""


@dataclass(frozen=True, slots=True)
class Result:
    """A result file. `settings` are the options as they came out; `target` says who was measured."""

    format: str
    settings: dict[str, dict[str, Any]]
    target: dict[str, Any]
    versions: dict[str, str]
    machine: dict[str, Any]
    runs: tuple[Run, ...]
    summaries: list[dict[str, Any]] = field(default_factory=list)
    """What `metrics.summarize` says of each run, for other readers of the file; ours compute it again."""


def record_of(attempt: Attempt, start: float) -> Record:
    """The record of an attempt, times made relative to the start."""
    exchange, answer = attempt.exchange, attempt.exchange.answer()
    planned = len(attempt.turn.prompt)
    return Record(
        session=attempt.session,
        turn=attempt.turn_index,
        background=attempt.background,
        kind=attempt.turn.kind,
        prompt_tokens=planned if answer.prompt_tokens is None else answer.prompt_tokens,
        max_tokens=attempt.turn.max_tokens,
        due=_since(start, attempt.due),
        sent=_since(start, exchange.sent),
        accepted=None if exchange.accepted is None else _since(start, exchange.accepted),
        ended=_since(start, exchange.ended),
        arrivals=tuple(Arrival(_since(start, at), tokens) for at, tokens in answer.arrivals),
        counted_by=answer.counted_by,
        cached_tokens=answer.cached_tokens,
        finish_reason=answer.finish_reason,
        failure=answer.failure,
    )


def _since(start: float, moment: float) -> float:
    return round(moment - start, DECIMALS)


def write_result(result: Result, path: Path) -> None:
    """
    Raises:
        BenchError: the file cannot be written.
    """
    try:
        path.write_bytes(msgspec.json.encode(result) + b"\n")
    except OSError as error:
        raise BenchError(f"cannot write {path}: {error.strerror or error}") from error


def read_result(path: Path) -> Result:
    """
    Raises:
        BenchError: the file cannot be read, or holds something else.
    """
    try:
        result = msgspec.json.decode(path.read_bytes(), type=Result)
    except OSError as error:
        raise BenchError(f"cannot read {path}: {error.strerror or error}") from error
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise BenchError(f"{path} is no result of sluice bench --json: {error}") from error
    if result.format != FORMAT:
        raise BenchError(f"{path} has the format {result.format!r}; this version reads {FORMAT!r}")
    if not result.runs:
        raise BenchError(f"{path} holds no run")
    return result

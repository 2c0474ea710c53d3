"""From a file of traffic to arrivals: finds the format, and checks what all formats have in common."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Generic, NamedTuple, TypeVar

import msgspec

from sluice.sim.traces.formats import FORMATS
from sluice.sim.traces.rows import TraceRow, open_text
from sluice.sim.workload import Arrival, Longest
from sluice.tracing.format import TraceError

EMPTY, TOO_LONG = "empty", "too-long"
SKIPPABLE = (EMPTY, TOO_LONG)

Row = TypeVar("Row")


@dataclass(frozen=True, slots=True)
class ReadOptions:
    """What is made of a trace."""

    format: str | None = None
    """One of `FORMATS`; None: as the file looks."""
    block_size: int | None = None
    """Tokens of a block of `hash_ids`; None: as the format's own traces have it."""
    skip: frozenset[str] = frozenset()
    """Rows to leave out and count: `EMPTY`, without a prompt or an answer, and `TOO_LONG`. Others are refused."""
    longest: Longest | None = None
    """Most tokens of a request; None: any."""
    max_tokens: int | None = None
    """What clients ask for where the trace does not say, if their answer is not longer; None: the answer's length."""


@dataclass(frozen=True, slots=True)
class ReadTrace:
    """The requests of a file."""

    format: str
    arrivals: list[Arrival]
    """Requests, with times that count from the first one of the file."""
    skipped: Mapping[str, int]
    """Rows that were left out, by reason."""


def read_trace(path: Path, options: ReadOptions) -> ReadTrace:
    """Read a whole file.

    Raises:
        TraceError: the file cannot be read, its format is not known, or a row is wrong; the message names the row and
            the column.
    """
    skipped = Counter[str]()
    return ReadTrace(options.format or detect(path), list(iter_trace(path, options, skipped)), skipped)


def iter_trace(path: Path, options: ReadOptions, skipped: Counter[str] | None = None) -> Iterator[Arrival]:
    """Yield the requests of a file as they are read (see `read_trace`).

    Args:
        skipped: counts rows that are left out, by reason.
    """
    for row, time in _rows(path, options, Counter() if skipped is None else skipped):
        yield _arrival(row, time, options)


def streamed_trace(path: Path, options: ReadOptions) -> StreamedRows[TraceRow]:
    """Return the requests of a file from one time on and before another, as they are asked for (see `read_trace`)."""
    rows = ((time, row) for row, time in _rows(path, options, Counter()))
    return StreamedRows(rows, lambda row, time: _arrival(row, time, options))


class Survey(NamedTuple):
    """What is known of a file that was read and not kept."""

    requests: int
    span: float
    """Seconds from the first request to the last."""
    skipped: Mapping[str, int]
    """Rows that are left out, by reason."""


def survey(path: Path, options: ReadOptions, on_row: Callable[[], object] = lambda: None) -> Survey:
    """Read and check a whole file, and keep nothing (see `read_trace`).

    Args:
        on_row: called after each request.
    """
    skipped, count, span = Counter[str](), 0, 0.0
    for _, time in _rows(path, options, skipped):
        count, span = count + 1, time
        on_row()
    return Survey(count, span, skipped)


def _rows(path: Path, options: ReadOptions, skipped: Counter[str]) -> Iterator[tuple[TraceRow, float]]:
    """Yield the rows that are simulated, and their times since the first one."""
    name = options.format or detect(path)
    if name not in FORMATS:
        raise TraceError(f"unknown format {name!r}; known: {', '.join(FORMATS)}")
    found, is_empty = FORMATS[name], True
    if options.block_size is not None and not found.block_size:
        raise TraceError(
            f"{path}: the format {name} has no blocks, so --trace-block-size {options.block_size} does not apply"
        )
    first = latest = None
    for row in found.read(path, options.block_size or found.block_size):
        if latest is not None and row.at < latest:
            early = f"{latest - row.at:g} s before that of the line above"
            raise TraceError(f"{path}, line {row.line}: {found.time} must not go back, got a time {early}")
        first, latest = row.at if first is None else first, row.at
        reason, message = _fault(row, found.lengths, options)
        if reason in options.skip:
            skipped[reason] += 1
        elif reason:
            raise TraceError(f"{path}, line {row.line}: {message}; --skip {reason} leaves such rows out")
        else:
            is_empty = False
            yield row, row.at - first
    if is_empty:
        raise TraceError(f"{path} holds no request" + (f" but {skipped.total()} left out" if skipped else ""))


def detect(path: Path) -> str:
    """Return the name of a file's format, by its first line.

    Raises:
        TraceError: the file cannot be read, or no format has these columns.
    """
    with open_text(path) as file:
        try:
            line = next((text.strip() for text in file if text.strip()), "")
        except UnicodeDecodeError as error:
            raise TraceError(f"{path}, line 1: no text in UTF-8: {error}") from error
    is_csv = not line.startswith("{")
    names = [name.strip() for name in line.split(",")] if is_csv else _keys(line)
    if not is_csv and "kind" in names:
        return "sluice"
    found = {
        name: len(known.columns.needed)
        for name, known in FORMATS.items()
        if known.columns is not None and known.is_csv == is_csv and known.columns.match(set(names))
    }
    if found:  # Bailian's rows have all that Mooncake's have
        return max(found, key=lambda name: found[name])
    raise TraceError(
        f"{path}, line 1: no known format has the columns {', '.join(names) or 'of an empty file'}; --format takes "
        + "; ".join(f"{name} ({', '.join(known.columns.needed)})" for name, known in FORMATS.items() if known.columns)
        + "; sluice (a file of --trace)"
    )


def _keys(line: str) -> list[str]:
    try:
        return list(msgspec.json.decode(line, type=dict))
    except (msgspec.DecodeError, RecursionError):
        return [line[:40]]


def _fault(row: TraceRow, columns: tuple[str, str], options: ReadOptions) -> tuple[str, str]:
    """Return why a row is no request that can be simulated: one of `SKIPPABLE` and a message, or nothing twice."""
    lengths = row.prompt.length, row.output_tokens
    for column, length in zip(columns, lengths, strict=True):
        if not length:
            return EMPTY, f"{column} must be at least 1, got 0"
    if options.longest is None:
        return "", ""
    tokens, why = options.longest
    asked = _max_tokens(row, options)
    for column, answer in ((columns[1], lengths[1]), ("the request's max_tokens", asked)):
        if lengths[0] + answer > tokens:
            most = f"must be at most {tokens} tokens together ({why}), got {lengths[0]} and {answer}"
            return TOO_LONG, f"{columns[0]} and {column} {most}"
    return "", ""


def _max_tokens(row: TraceRow, options: ReadOptions) -> int:
    return max(row.max_tokens or options.max_tokens or 0, row.output_tokens)


def _arrival(row: TraceRow, time: float, options: ReadOptions) -> Arrival:
    return Arrival(
        time=time,
        prompt=row.prompt,
        output_tokens=row.output_tokens,
        max_tokens=_max_tokens(row, options),
        session=row.session,
        priority=row.priority,
        priority_class=row.priority_class,
        extra_key=row.extra_key,
        adapter=row.adapter,
        itl_target=row.itl_target,
        answer=row.answer,
        leaves=row.leaves,
    )


class StreamedRows(Generic[Row]):
    """Requests that are read once, of which no more is kept than what later calls may ask for (see `windows.Between`).

    Args:
        rows: with their times, in order.
        make: makes a request of a row, if it is asked for.
    """

    def __init__(self, rows: Iterable[tuple[float, Row]], make: Callable[[Row, float], Arrival]) -> None:
        self._left = iter(rows)
        self._make = make
        self._kept: list[Arrival] = []
        """Requests that were read and may be asked for again."""

    def __call__(self, start: float, end: float) -> list[Arrival]:
        found = [each for each in self._kept if each.time >= start]
        if not found or found[-1].time < end:
            for time, row in self._left:
                if time >= start:
                    found.append(self._make(row, time))
                    if time >= end:
                        break
        self._kept = found
        return [each for each in found if each.time < end]

"""Rows of a trace of traffic, read from CSV or JSON lines. Every error names the file, the line and the column."""

from __future__ import annotations

import csv
import json
import math
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple, TextIO

from sluice.sim.workload import MOST_TOKENS, Leaves, Prompt, Segment, TokenSource
from sluice.tracing.format import TraceError

FEW_DIGITS = 16
"""Fewer digits than this make integers that floating-point numbers hold exactly."""


class TraceRow(NamedTuple):
    """One request of a trace."""

    line: int
    at: float
    """Seconds since any moment, the same for the whole trace."""
    prompt: TokenSource
    """The prompt. It may have no token if the trace says so; such rows are refused or left out later."""
    output_tokens: int
    session: str | None = None
    max_tokens: int | None = None
    """What the client asked for; None: the trace does not say."""
    priority: int = 0
    priority_class: str = ""
    extra_key: str = ""
    adapter: str = ""
    itl_target: int = 0
    """Microseconds, as `Submit.itl_target`."""
    answer: TokenSource | None = None
    leaves: Leaves | None = None


def own_text(line: int, length: int) -> Prompt:
    """Return a prompt that shares no beginning with that of another line, or with blocks of numbered ids."""
    return Prompt((Segment(-line, length),) if length else ())


class FileColumns(NamedTuple):
    """The columns of a CSV file, or the keys of JSON objects."""

    needed: tuple[str, ...]
    optional: tuple[str, ...] | None = ()
    """None: there may be any others, which are not read."""

    def match(self, names: set[str]) -> bool:
        """Return whether a file with these columns has all that is needed and nothing unknown."""
        is_known = self.optional is None or names.issubset((*self.needed, *self.optional))
        return is_known and names.issuperset(self.needed)


class FileRow:
    """The values of one row, with their checks.

    Args:
        path: the file, for errors.
        line: number of the line, from 1.
        values: by column; strings, or values of JSON.
    """

    def __init__(self, path: Path, line: int, values: Mapping[str, Any]) -> None:
        self._path = path
        self._values = values
        self.line = line

    def count(self, column: str, lowest: int = 0) -> int:
        """
        Raises:
            TraceError: the value is no integer of at least `lowest`.
        """
        text = self._values.get(column)
        if type(text) is str and text.isdigit() and text.isascii() and len(text) < FEW_DIGITS:
            value: float | None = int(text)  # nearly every row of a file of millions
        else:
            value = self._number(column)
        if value is None or not float(value).is_integer() or value < lowest:
            raise self.error(column, f"an integer of at least {lowest}")
        return int(value)

    def length(self, column: str) -> int:
        """Return a number of tokens.

        Raises:
            TraceError: the value is no integer from 0 to `MOST_TOKENS`.
        """
        value = self.count(column)
        if value > MOST_TOKENS:
            raise self.error(column, f"at most {MOST_TOKENS}")
        return value

    def number(self, column: str) -> float:
        """
        Raises:
            TraceError: the value is no number of at least 0.
        """
        value = self._number(column)
        if value is None or not 0 <= value < math.inf:
            raise self.error(column, "a number of at least 0")
        return value

    def moment(self, column: str) -> datetime:
        """Return a date with a time, in UTC where it names no zone.

        Raises:
            TraceError: the value is none.
        """
        try:
            found = datetime.fromisoformat(self._given(column))
            return found if found.tzinfo is None else found.astimezone(UTC).replace(tzinfo=None)
        except (OverflowError, TypeError, ValueError):
            raise self.error(column, "a date and time such as 2023-11-16 18:17:03.97") from None

    def given(self, column: str) -> str | None:
        """Return a value as a text; None if there is none."""
        value = self._values.get(column)
        return None if value is None or value == "" else str(value)

    def prompt(self, column: str, size: int, length: int) -> Prompt:
        """Return a prompt of `length` tokens that consists of blocks of `size`. The last one may be shorter, or left
        out if it is.

        Raises:
            TraceError: the value is no list of integers of at least 0, or one of another length.
        """
        ids = self._given(column)
        if not isinstance(ids, list) or not all(type(each) is int and each >= 0 for each in ids):
            raise self.error(column, "a list of integers of at least 0")
        whole, rest = divmod(length, size)
        if not whole <= len(ids) <= whole + (rest > 0):
            blocks = f"{whole + (rest > 0)} blocks of {size} tokens (--trace-block-size)"
            accepted = f"the ids of {blocks}, as the prompt has {length}"
            raise self.error(column, accepted, f"{len(ids)} of them")
        segments = [Segment(each, size) for each in ids[:whole]]
        if rest:
            segments.append(Segment(ids[whole] if len(ids) > whole else -self.line, rest))
        return Prompt(tuple(segments))

    def error(self, column: str, accepted: str, got: str | None = None) -> TraceError:
        """Return an error that names the place, what is accepted there, and what stands there."""
        shown = repr(self._values.get(column))[:80] if got is None else got
        return TraceError(f"{self._path}, line {self.line}: {column} must be {accepted}, got {shown}")

    def _given(self, column: str) -> Any:
        value = self._values.get(column)
        if value is None or value == "":
            raise TraceError(f"{self._path}, line {self.line}: {column} is missing")
        return value

    def _number(self, column: str) -> float | None:
        """Return a value as a number; None if it is none, or has digits that only Python takes for one."""
        value = self._given(column)
        if isinstance(value, str):
            if "_" in value or not value.isascii():
                return None
        elif isinstance(value, bool) or not isinstance(value, int | float):
            return None
        try:
            number = float(value)
        except (ValueError, OverflowError):
            return None
        return value if type(value) is int else number


def csv_rows(path: Path, columns: FileColumns) -> Iterator[FileRow]:
    """Yield the rows of a CSV file.

    Raises:
        TraceError: the file cannot be read, a column is missing, or a row has more or fewer values than the header.
    """
    with open_text(path) as file:
        lines = csv.reader(file)
        try:
            names = [name.strip() for name in next(lines, [])]
            if missing := [name for name in columns.needed if name not in names]:
                shown = ", ".join(names) or "none"
                raise TraceError(f"{path}, line 1: column {missing[0]!r} is missing; columns: {shown}")
            if twice := [name for name in (*columns.needed, *(columns.optional or ())) if names.count(name) > 1]:
                raise TraceError(f"{path}, line 1: column {twice[0]!r} is there twice")
            for values in lines:
                if len(values) == len(names):
                    yield FileRow(path, lines.line_num, dict(zip(names, values, strict=True)))
                elif values:
                    raise TraceError(f"{path}, line {lines.line_num}: {len(values)} values for {len(names)} columns")
        except (csv.Error, UnicodeDecodeError) as error:
            raise TraceError(f"{path}, line {lines.line_num + 1}: {error}") from error


def json_rows(path: Path) -> Iterator[FileRow]:
    """Yield the objects of a file of JSON lines. Empty lines are ignored.

    Raises:
        TraceError: the file cannot be read, or a line is no JSON object.
    """
    with open_text(path) as file:
        line = 0
        try:
            for line, text in enumerate(file, start=1):
                if not text.strip():
                    continue
                values = json.loads(text, object_pairs_hook=_distinct)
                if not isinstance(values, dict):
                    raise TraceError(f"{path}, line {line}: each line must be a JSON object, got {text[:40]!r}")
                yield FileRow(path, line, values)
        except UnicodeDecodeError as error:
            raise TraceError(f"{path}, line {line + 1}: {error}") from error
        except RecursionError as error:
            raise TraceError(f"{path}, line {line}: brackets are nested too deeply") from error
        except TraceError:
            raise
        except ValueError as error:  # an integer of thousands of digits, too
            raise TraceError(f"{path}, line {line}: not JSON that can be read: {error}") from error


def _distinct(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Return an object of JSON.

    Raises:
        ValueError: a key is there twice.
    """
    found = dict(pairs)
    if len(found) < len(pairs):
        names = [name for name, _ in pairs]
        raise ValueError(f"{next(name for name in names if names.count(name) > 1)!r} is there twice")
    return found


def open_text(path: Path) -> TextIO:
    """
    Raises:
        TraceError: the file cannot be opened.
    """
    try:
        return path.open(encoding="utf-8-sig", newline="")
    except OSError as error:
        raise TraceError(f"cannot read {path}: {error.strerror}") from error

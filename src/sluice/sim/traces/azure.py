"""Azure's traces of LLM inference of 2023 and 2024: a CSV file of dates and lengths. Prompts share nothing."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from sluice.sim.traces.rows import Columns, TraceRow, csv_rows, own_text

COLUMNS = Columns(("TIMESTAMP", "ContextTokens", "GeneratedTokens"))
LENGTHS = ("ContextTokens", "GeneratedTokens")


def read(path: Path) -> Iterator[TraceRow]:
    """Yield the requests.

    Raises:
        TraceError: a value is missing or wrong; the message names line and column.
    """
    first = None
    for row in csv_rows(path, COLUMNS):
        moment = row.moment("TIMESTAMP")
        first = first or moment
        seconds = (moment - first).total_seconds()
        yield TraceRow(row.line, seconds, own_text(row.line, row.length(LENGTHS[0])), row.length(LENGTHS[1]))

"""Traces of the simulator Vidur: a CSV file of seconds and lengths. Prompts share nothing."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from sluice.sim.traces.rows import Columns, TraceRow, csv_rows, own_text

COLUMNS = Columns(("arrived_at", "num_prefill_tokens", "num_decode_tokens"))
LENGTHS = ("num_prefill_tokens", "num_decode_tokens")


def read(path: Path) -> Iterator[TraceRow]:
    """Yield the requests.

    Raises:
        TraceError: a value is missing or wrong; the message names line and column.
    """
    for row in csv_rows(path, COLUMNS):
        prompt = own_text(row.line, row.length(LENGTHS[0]))
        yield TraceRow(row.line, row.number("arrived_at"), prompt, row.length(LENGTHS[1]))

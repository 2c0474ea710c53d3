"""BurstGPT's traces: a CSV file of seconds and lengths. Prompts share nothing; failed requests have no answer.

Format: Wang et al., "BurstGPT: A Real-world Workload Dataset to Optimize LLM Serving Systems", 2024. Later files name
the session, too.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from sluice.sim.traces.rows import Columns, TraceRow, csv_rows, own_text

COLUMNS = Columns(
    ("Timestamp", "Model", "Request tokens", "Response tokens", "Total tokens", "Log Type"),
    ("Session ID", "Elapsed time"),
)
LENGTHS = ("Request tokens", "Response tokens")


def read(path: Path) -> Iterator[TraceRow]:
    """Yield the requests to all models of the file.

    Raises:
        TraceError: a value is missing or wrong, or the total is not the sum; the message names line and column.
    """
    for row in csv_rows(path, COLUMNS):
        request, response = row.length(LENGTHS[0]), row.length(LENGTHS[1])
        if row.count("Total tokens") != request + response:
            raise row.error("Total tokens", f"the sum of both lengths, {request + response}")
        prompt, at = own_text(row.line, request), row.number("Timestamp")
        yield TraceRow(row.line, at, prompt, response, session=row.given("Session ID"))

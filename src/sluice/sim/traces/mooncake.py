"""Mooncake's traces: JSON lines with the ids of a prompt's blocks of 512 tokens.

Equal ids stand for equal beginnings: an id is a hash of its block and of all blocks before it. Format: Qin et al.,
"Mooncake: A KVCache-centric Disaggregated Architecture for LLM Serving", 2024.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from sluice.sim.traces.rows import Columns, TraceRow, json_rows

BLOCK_TOKENS = 512
COLUMNS = Columns(("timestamp", "input_length", "output_length", "hash_ids"), ("session_id",))
LENGTHS = ("input_length", "output_length")


def read(path: Path) -> Iterator[TraceRow]:
    """Yield the requests; `timestamp` is in milliseconds.

    Raises:
        TraceError: a value is missing or wrong; the message names line and column.
    """
    for row in json_rows(path):
        length = row.length("input_length")
        yield TraceRow(
            row.line,
            row.number("timestamp") / 1000,
            row.prompt("hash_ids", BLOCK_TOKENS, length),
            row.length("output_length"),
            session=row.given("session_id"),
        )

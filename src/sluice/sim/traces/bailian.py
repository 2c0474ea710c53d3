"""Traces of Alibaba's Bailian: JSON lines with chains of chats and the ids of a prompt's blocks of 16 tokens.

Format: Wang et al., "KVCache Cache in the Wild: Characterizing and Optimizing KVCache Cache at a Large Cloud Provider",
2025.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from sluice.sim.traces.rows import Columns, TraceRow, json_rows

BLOCK_TOKENS = 16
COLUMNS = Columns(
    ("chat_id", "parent_chat_id", "timestamp", "input_length", "output_length", "hash_ids"), ("type", "turn")
)
LENGTHS = ("input_length", "output_length")
NO_PARENT = -1


def read(path: Path) -> Iterator[TraceRow]:
    """Yield the requests; `timestamp` is in seconds. The session of a chat is the first chat of its chain, or the
    oldest that it names if the chain began before the trace.

    Raises:
        TraceError: a value is missing or wrong; the message names line and column.
    """
    roots: dict[int, int] = {}
    for row in json_rows(path):
        chat, parent = row.count("chat_id"), row.count("parent_chat_id", NO_PARENT)
        roots[chat] = chat if parent == NO_PARENT else roots.get(parent, parent)
        length = row.length("input_length")
        yield TraceRow(
            row.line,
            row.number("timestamp"),
            row.prompt("hash_ids", BLOCK_TOKENS, length),
            row.length("output_length"),
            session=str(roots[chat]),
        )

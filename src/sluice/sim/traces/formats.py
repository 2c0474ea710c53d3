"""The formats of recorded traffic: how a file of each is recognised, and what its rows mean."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple

from sluice.sim.traces import recorded
from sluice.sim.traces.rows import FileColumns, TraceRow, csv_rows, json_rows, own_text

NO_PARENT = -1
"""The parent of a chain's first chat, in a trace of Bailian."""


class TraceFormat(NamedTuple):
    """How a kind of file is recognised and read."""

    read: Callable[[Path, int], Iterator[TraceRow]]
    """Takes the file, and `block_size` or what is asked for in its place."""
    time: str
    """Column of the arrival."""
    lengths: tuple[str, str]
    """Columns of the lengths of prompt and answer."""
    columns: FileColumns | None
    """Columns of the file; None for our own trace, whose first line says what it is."""
    is_csv: bool = False
    block_size: int = 0
    """Tokens of a block of the prompt; 0: it has none."""


def read_azure(path: Path, block_size: int) -> Iterator[TraceRow]:
    """Yield the requests of Azure's traces of LLM inference of 2023 and 2024: a CSV file of dates and lengths. Prompts
    share nothing.

    Raises:
        TraceError: a value is missing or wrong; the message names line and column.
    """
    first = None
    for row in csv_rows(path, _AZURE):
        moment = row.moment("TIMESTAMP")
        first = first or moment
        prompt = own_text(row.line, row.length("ContextTokens"))
        yield TraceRow(row.line, (moment - first).total_seconds(), prompt, row.length("GeneratedTokens"))


def read_bailian(path: Path, block_size: int) -> Iterator[TraceRow]:
    """Yield the requests of Alibaba's Bailian: JSON lines with chains of chats and the ids of a prompt's blocks, of
    16 tokens in the published ones.

    `timestamp` is in seconds. The session of a chat is the first chat of its chain, or the oldest that it names if the
    chain began before the trace. Format: Wang et al., "KVCache Cache in the Wild: Characterizing and Optimizing KVCache
    Cache at a Large Cloud Provider", 2025.

    Raises:
        TraceError: a value is missing or wrong; the message names line and column.
    """
    roots: dict[int, int] = {}
    for row in json_rows(path):
        chat, parent = row.count("chat_id"), row.count("parent_chat_id", NO_PARENT)
        roots[chat] = chat if parent == NO_PARENT else roots.get(parent, parent)
        prompt = row.prompt("hash_ids", block_size, row.length("input_length"))
        at, length = row.number("timestamp"), row.length("output_length")
        yield TraceRow(row.line, at, prompt, length, session=str(roots[chat]))


def read_burstgpt(path: Path, block_size: int) -> Iterator[TraceRow]:
    """Yield the requests of BurstGPT's traces, to all models of the file: a CSV file of seconds and lengths.

    Prompts share nothing; failed requests have no answer. Format: Wang et al., "BurstGPT: A Real-world Workload Dataset
    to Optimize LLM Serving Systems", 2024. Later files name the session, too.

    Raises:
        TraceError: a value is missing or wrong, or the total is not the sum; the message names line and column.
    """
    for row in csv_rows(path, _BURSTGPT):
        request, response = row.length("Request tokens"), row.length("Response tokens")
        if row.count("Total tokens") != request + response:
            raise row.error("Total tokens", f"the sum of both lengths, {request + response}")
        prompt, at = own_text(row.line, request), row.number("Timestamp")
        yield TraceRow(row.line, at, prompt, response, session=row.given("Session ID"))


def read_mooncake(path: Path, block_size: int) -> Iterator[TraceRow]:
    """Yield the requests of Mooncake's traces: JSON lines with the ids of a prompt's blocks.

    Blocks have 512 tokens in Mooncake's own traces, and others where other programs write the format. `timestamp` is in
    milliseconds. Equal ids stand for equal beginnings: an id is a hash of its block and of all blocks before it.
    Format: Qin et al., "Mooncake: A KVCache-centric Disaggregated Architecture for LLM Serving", 2024.

    Raises:
        TraceError: a value is missing or wrong; the message names line and column.
    """
    for row in json_rows(path):
        prompt = row.prompt("hash_ids", block_size, row.length("input_length"))
        at, length = row.number("timestamp") / 1000, row.length("output_length")
        yield TraceRow(row.line, at, prompt, length, session=row.given("session_id"))


def read_vidur(path: Path, block_size: int) -> Iterator[TraceRow]:
    """Yield the requests of a trace of the simulator Vidur: a CSV file of seconds and lengths. Prompts share nothing.

    Raises:
        TraceError: a value is missing or wrong; the message names line and column.
    """
    for row in csv_rows(path, _VIDUR):
        prompt = own_text(row.line, row.length("num_prefill_tokens"))
        yield TraceRow(row.line, row.number("arrived_at"), prompt, row.length("num_decode_tokens"))


_AZURE = FileColumns(("TIMESTAMP", "ContextTokens", "GeneratedTokens"))
_BAILIAN = FileColumns(
    ("chat_id", "parent_chat_id", "timestamp", "input_length", "output_length", "hash_ids"), optional=None
)
_BURSTGPT = FileColumns(
    ("Timestamp", "Model", "Request tokens", "Response tokens", "Total tokens", "Log Type"),
    ("Session ID", "Elapsed time"),
)
_MOONCAKE = FileColumns(("timestamp", "input_length", "output_length", "hash_ids"), optional=None)
_VIDUR = FileColumns(("arrived_at", "num_prefill_tokens", "num_decode_tokens"))

FORMATS: Mapping[str, TraceFormat] = MappingProxyType(
    {
        "sluice": TraceFormat(lambda path, _: recorded.read(path), "arrived_at", recorded.LENGTHS, None),
        "mooncake": TraceFormat(
            read_mooncake, "timestamp", ("input_length", "output_length"), _MOONCAKE, block_size=512
        ),
        "bailian": TraceFormat(read_bailian, "timestamp", ("input_length", "output_length"), _BAILIAN, block_size=16),
        "azure": TraceFormat(read_azure, "TIMESTAMP", ("ContextTokens", "GeneratedTokens"), _AZURE, is_csv=True),
        "vidur": TraceFormat(
            read_vidur, "arrived_at", ("num_prefill_tokens", "num_decode_tokens"), _VIDUR, is_csv=True
        ),
        "burstgpt": TraceFormat(
            read_burstgpt, "Timestamp", ("Request tokens", "Response tokens"), _BURSTGPT, is_csv=True
        ),
    }
)

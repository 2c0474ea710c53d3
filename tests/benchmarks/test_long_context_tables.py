"""The formulae behind docs/long-contexts.md, and that its tables are theirs."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks.long_context.cost import CostDevice, decode_cost, hiding_chunk, loaded_tokens, prefill_cost
from benchmarks.long_context.tables import (
    CHUNK,
    CPU,
    CPU_CHUNK,
    CPU_LENGTHS,
    GPU,
    MODEL,
    RECALL,
    STREAM,
    duration,
    hiding,
    memory_table,
    time_table,
)
from sluice.types.footprint import device_footprint, stored_bytes

DOCS = Path(__file__).parents[2] / "docs" / "long-contexts.md"
GIB = 1 << 30


def test_docs_have_the_tables() -> None:
    """A number in the docs that no formula gives."""
    text = DOCS.read_text(encoding="utf-8")
    assert memory_table() in text
    assert time_table(MODEL, GPU, CHUNK) in text
    assert time_table(RECALL, CPU, CPU_CHUNK, CPU_LENGTHS) in text
    assert f"Copies hide from {hiding(MODEL, GPU)} on" in text


@pytest.mark.parametrize(("length", "chunk"), [(1, 1), (10, 1), (10, 3), (12, 3), (7, 100), (1000, 64)])
def test_every_chunk_loads_what_is_before_it(length: int, chunk: int) -> None:
    """A sum in closed form that forgets the last, shorter chunk."""
    assert loaded_tokens(length, chunk) == sum(range(0, length, chunk))


def test_what_the_host_holds_is_keys_and_values() -> None:
    """The prior art's table counts keys alone: 112 KiB a token are 14, 112 and 448 GiB."""
    assert MODEL.kv.token_bytes == 112 << 10
    held = [stored_bytes(MODEL.kv, tokens, 64) for tokens in (1 << 17, 1 << 20, 1 << 22)]
    assert held == [14 * GIB, 112 * GIB, 448 * GIB]
    assert stored_bytes(MODEL.kv, 65, 64) == 2 * stored_bytes(MODEL.kv, 1, 64)


def test_parts_of_the_device() -> None:
    """A part that is counted twice: buffers are parts of the pool and of the ring."""
    parts = device_footprint(MODEL.kv, 4096, STREAM, weights_bytes=5)
    assert parts.ring_bytes == 8 * 1024 * 4096
    assert (
        parts.device_kv_bytes == parts.pool_bytes + parts.ring_bytes == 4096 * MODEL.kv.token_bytes + parts.ring_bytes
    )
    assert parts.pipeline_buffer_bytes == parts.ring_bytes // 2
    assert device_footprint(MODEL.kv, 4096, replace(STREAM, ring_blocks=1, group_blocks=1)).pipeline_buffer_bytes == 0
    assert parts.decode_buffer_bytes < parts.prefill_buffer_bytes <= parts.pool_bytes
    assert (parts.weights_bytes, parts.host_bytes, parts.disk_bytes) == (5, 0, 0)


def test_copies_hide_from_that_chunk_on() -> None:
    """A chunk said to hide the copies under which they still take longer than the attention."""
    device = CostDevice(flops=1e15, copy_bandwidth=2e10, memory_bandwidth=1e12)
    attention = replace(MODEL, hidden_size=0, inner_size=0)
    least = round(hiding_chunk(attention, device))
    for chunk, hidden in ((least * 9 // 10, False), (least * 11 // 10, True)):
        cost = prefill_cost(attention, device, 1 << 22, chunk)
        assert (cost.copy_seconds < cost.compute_seconds) == hidden
        assert cost.seconds == max(cost.copy_seconds, cost.compute_seconds)


def test_a_decoded_token_reads_everything() -> None:
    """19 s for one token behind 4M: the figure that decides whether a policy is needed."""
    cost = decode_cost(MODEL, GPU, 1 << 22)
    assert cost.seconds == cost.copy_seconds == pytest.approx(448 * GIB / 25e9)
    assert [duration(seconds) for seconds in (5.0, 90.0, 7200.0, 200_000.0)] == [
        "5.0 s",
        "1.5 min",
        "2.0 h",
        "2.3 days",
    ]

"""The memory of a context by its parts, as `LLM.memory_report(length)` and `/server_info` show it."""

from __future__ import annotations

from dataclasses import replace

from sluice.types.footprint import KVSizes, OffloadSizes, device_footprint, stored_bytes

GIB = 1 << 30
KV = KVSizes(28, 8, 128, 2)
"""28 layers, 8 KV heads of 128, bfloat16: Qwen3-0.6B."""
OFFLOAD = OffloadSizes(ring_blocks=8, group_blocks=4, block_tokens=1024, window_tokens=4096, page_tokens=64)


def test_a_tier_holds_keys_and_values() -> None:
    """Half of the bytes, if keys alone were counted."""
    assert KV.token_bytes == 112 << 10
    held = [stored_bytes(KV, tokens, 64) for tokens in (1 << 17, 1 << 20, 1 << 22)]
    assert held == [14 * GIB, 112 * GIB, 448 * GIB]
    assert stored_bytes(KV, 65, 64) == 2 * stored_bytes(KV, 1, 64)


def test_parts_of_the_device() -> None:
    """A part that is counted twice: buffers are parts of the pool and of the ring."""
    parts = device_footprint(KV, 4096, OFFLOAD, weights_bytes=5)
    assert parts.ring_bytes == 8 * 1024 * 4096
    assert parts.device_kv_bytes == parts.pool_bytes + parts.ring_bytes == 4096 * KV.token_bytes + parts.ring_bytes
    assert parts.pipeline_buffer_bytes == parts.ring_bytes // 2
    assert device_footprint(KV, 4096, replace(OFFLOAD, ring_blocks=1, group_blocks=1)).pipeline_buffer_bytes == 0
    assert parts.decode_buffer_bytes < parts.prefill_buffer_bytes <= parts.pool_bytes
    assert (parts.weights_bytes, parts.host_bytes, parts.disk_bytes) == (5, 0, 0)

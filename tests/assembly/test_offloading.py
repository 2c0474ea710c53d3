"""What options of long contexts come to."""

from __future__ import annotations

from dataclasses import replace

import pytest

from sluice.assembly.offloading import (
    FREE,
    Costs,
    OffloadSetup,
    Sizes,
    check_effect,
    offload_limits,
    policy_of,
    ring_bytes,
    room_beside_ring,
)
from sluice.assembly.resolve import resolve
from sluice.config import ConfigError, EngineConfig, OffloadConfig
from sluice.types import Tier
from sluice.types.footprint import KVSizes, device_footprint

CONFIG = OffloadConfig(ring_blocks=8, ring_block_tokens=1024, sparse_policy="full")
SIZES = Sizes(Tier.HOST, 1000, 64, 1000, 28, 512, "cuda")


def test_chunks_fit_what_a_device_was_sized_for() -> None:
    """A chunk larger than the largest step that was tried on a GPU: its activations have no room there."""
    limits = offload_limits(CONFIG, SIZES, FREE)
    assert limits is not None
    assert (limits.chunk_tokens, limits.window_pages, limits.group_blocks) == (512, 16, 4)
    on_cpu = offload_limits(CONFIG, replace(SIZES, device_type="cpu", step_tokens=128), FREE)
    assert on_cpu is not None
    assert on_cpu.chunk_tokens == 512
    small = offload_limits(CONFIG, replace(SIZES, num_pages=8), FREE)
    assert small is not None
    assert (small.chunk_tokens, small.window_pages) == (128, 4)
    assert offload_limits(CONFIG, replace(SIZES, num_pages=1), FREE) is None


def test_a_sparse_prefill_is_paid_for_as_such() -> None:
    """It took as many steps as a full one."""
    sparse = replace(CONFIG, sparse_policy="import:benchmarks.long_context.sparse_prefill:RecentPrefill")
    limits = offload_limits(sparse, SIZES, FREE)
    assert limits is not None
    totals = [
        limits.items(pages, length, is_decode=False).groups for pages, length in ((64, 512), (6400, 512), (6400, 64))
    ]
    assert totals == [1, 2, 100], "four blocks a group: 64 and 4,096 tokens, or all"


def test_a_ring_that_memory_has_no_room_for_is_refused() -> None:
    """An allocator's error at the start, or a machine that runs out of memory as the ring fills."""
    kv = KVSizes(28, 8, 128, 2)
    assert room_beside_ring(CONFIG, kv, 32 << 21) == 32 << 20
    message = (
        "--ring-blocks 8 of --ring-block-tokens 1024 take 33554432 bytes, but 33554431 are free; at most 1023 tokens"
    )
    with pytest.raises(ConfigError, match=message):
        room_beside_ring(CONFIG, kv, (32 << 20) - 1)
    assert room_beside_ring(OffloadConfig(), kv, 1) == 1


@pytest.mark.parametrize("name", ["offload_above", "ring_blocks", "ring_block_tokens"])
def test_options_that_no_context_can_follow_are_refused(name: str) -> None:
    """A pool of one page has no window: nothing is offloaded, even if the options ask for it."""
    limits = offload_limits(CONFIG, replace(SIZES, num_pages=2), FREE)
    given = replace(OffloadConfig(), **{name: 64})
    check_effect(given, limits, 64)
    check_effect(OffloadConfig(), None, 64)
    with pytest.raises(
        ConfigError, match=r"--[a-z-]+ 64 needs a KV pool of 2 pages or more \(--max-total-tokens 128\)"
    ):
        check_effect(given, offload_limits(CONFIG, replace(SIZES, num_pages=1), FREE), 64)


def test_a_unit_costs_no_more_than_a_step_may() -> None:
    """Groups so large that one of them is longer than any step beside it."""
    limits = offload_limits(CONFIG, SIZES, Costs(pair=0.0005, load=0.0))
    assert limits is not None
    assert limits.group_blocks == 1
    kv = KVSizes(28, 8, 128, 2)
    sizes = OffloadSetup.of(CONFIG, limits, 64, 1, None).sizes(64, kv)
    report = device_footprint(kv, 64000, sizes)
    assert report.pipeline_buffer_bytes == 7 * report.ring_bytes // 8  # the report says what loads, not half
    assert limits.cost_of_group(limits.chunk_tokens, 64, is_decode=False) <= 512
    assert limits.decode_group_blocks == 4, "a decoded token computes little with each block"
    few = offload_limits(CONFIG, SIZES, Costs(pair=0.002, load=0.0))
    assert few is not None
    assert (few.group_blocks, few.block_parts, few.decode_group_blocks) == (1, 1, 4), "parts of 2,048 tokens at least"
    long = offload_limits(replace(CONFIG, ring_block_tokens=4096), SIZES, Costs(pair=0.0005, load=0.0))
    assert long is not None
    assert (long.group_blocks, long.block_parts) == (1, 2)
    longer = offload_limits(replace(CONFIG, ring_block_tokens=8192), SIZES, Costs(pair=0.0003, load=0.0))
    assert longer is not None
    assert longer.block_parts == 3
    assert longer.cost_of_group(longer.chunk_tokens, 64, is_decode=False) <= 512
    slow = offload_limits(CONFIG, SIZES, Costs(pair=0.0005, load=0.2))
    assert slow is not None
    assert slow.decode_group_blocks == 2
    assert slow.cost_of_group(1, 64, is_decode=True) <= 512


def test_the_ring_is_of_one_layer() -> None:
    """Memory of a ring that is counted for every layer."""
    assert ring_bytes(CONFIG, KVSizes(28, 8, 128, 2)) == 8 * 1024 * 4096
    assert ring_bytes(OffloadConfig(), KVSizes(28, 8, 128, 2)) == 0


@pytest.mark.parametrize(
    "policy", ["quest", "window", "window:1", "window:a:2", "window:0:0", "window:-1:5", "import:sluice"]
)
def test_a_policy_that_is_none_is_refused(policy: str) -> None:
    """A policy with a typing mistake, silently taken for another one."""
    config = EngineConfig.from_options({"kv_disk": "pages", "sparse_policy": policy})
    with pytest.raises(ConfigError, match="--sparse-policy must"):
        resolve(config, "cpu")


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("no_such_module:Full", "gives no policy: ModuleNotFoundError: No module named 'no_such_module'"),
        ("sluice.runner.offload.sparse:Nothing", "gives no policy: AttributeError: .*Nothing"),
        ("builtins:str", "must give a SparsePolicy when it is called with the page size, got '64'"),
    ],
)
def test_what_is_no_policy_of_ones_own_is_refused(name: str, why: str) -> None:
    """An error of Python's, in the middle of the first long prompt."""
    with pytest.raises(ConfigError, match=f"--sparse-policy import:{name} {why}"):
        policy_of(replace(CONFIG, sparse_policy=f"import:{name}"), 64)


def test_blocks_are_whole_pages() -> None:
    """A block that ends inside a page."""
    config = EngineConfig.from_options({"kv_disk": "pages", "ring_block_tokens": 100})
    with pytest.raises(ConfigError, match="multiple of --page-size 32, got 100"):
        resolve(config, "cpu")

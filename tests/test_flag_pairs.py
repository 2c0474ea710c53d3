"""Every pair of options is either refused at the start, by name, or runs to its end under every law."""

from __future__ import annotations

import random
from itertools import combinations, product
from typing import Any

import pytest

from option_worlds import SMALL, Arrival, play, world_of
from sluice.config import GROUPS, ConfigError, flag, options_of
from sluice.engine.messages import Submit
from sluice.testing import resolved
from worlds import World

VALUES: dict[str, tuple[Any, ...]] = {
    "page_size": (2, 8),
    "max_total_tokens": (48, 160),
    "enable_prefix_caching": (False,),
    "kv_host_bytes": (5_000,),
    "kv_disk": ("pages",),
    "kv_disk_bytes": (3_000,),
    "kv_write_policy": ("write-back", "selective"),
    "schedule": ("mixed", "prefill-first"),
    "chunked_prefill_size": (-1, 7),
    "dynamic_chunking": (0, 5),
    "dynamic_chunking_smoothing": (0.5,),
    "itl_target": ("3ms", "auto", "off"),
    "itl_quantile": (0.5,),
    "max_batch_tokens": (8, 30),
    "max_running_requests": (1, 3),
    "max_prefill_tokens": (5, 20),
    "long_prefill_token_threshold": (6,),
    "max_prefill_requests": (1, 2),
    "max_partial_prefills": (1, 3),
    "reserve": ("ratio", "full"),
    "schedule_conservativeness": (0.0, 1.5),
    "schedule_policy": ("lpm", "priority", "deadline"),
    "priority_classes": ("interactive:ttft=1ms",),
    "schedule_low_priority_values_first": (True,),
    "enable_priority_preemption": (True,),
    "max_queued_requests": (1, 3),
    "max_queued_tokens": (10, 40),
    "enable_overlap": (True,),
    "depth": (2, 3),
    "lookahead": (1,),
    "speculative_algorithm": ("ngram", "draft-model"),
    "speculative_draft_model": ("folder",),
    "speculative_num_steps": (4,),
    "speculative_num_draft_tokens": (3,),
    "speculative_ngram_min_match_window_size": (1,),
    "speculative_ngram_max_match_window_size": (1,),
    "speculative_ngram_capacity": (64,),
    "offload_above": (20,),
    "ring_blocks": (1,),
    "ring_block_tokens": (16,),
    "sparse_policy": ("window:8:8",),
}
BASES = [dict(SMALL), {**SMALL, "schedule_policy": "priority"}]
ON_DISK = {**SMALL, "kv_disk": "pages", "kv_disk_bytes": 12_000}
"""For options of the tiers too."""
OFFLOADED = {**ON_DISK, "kv_disk_bytes": 90_000, "offload_above": 15, "ring_block_tokens": 8, "depth": 2}
"""And for those of contexts longer than the device."""
PACED = {**SMALL, "itl_target": "3ms"}
NGRAM = {"speculative_algorithm": "ngram"}
DRAFT_MODEL = {"speculative_algorithm": "draft-model", "speculative_draft_model": "folder"}
SHRINKING = {**SMALL, "dynamic_chunking": 5}
OFFLOAD_OPTIONS = tuple(name for name, _ in options_of(GROUPS["offload"]))
PAIRS = [
    {one: left, other: right}
    for one, other in combinations(VALUES, 2)
    for left, right in product(VALUES[one], VALUES[other])
]


def arrivals(number: int) -> list[Arrival]:
    """Duplicates, a tenant with the same prompt, a long prompt, several classes, and as many more as fill the pool."""
    common = (1, 0, 1, 1, 0, 0, 1, 0)
    first = [
        Arrival(0, Submit(0, common + (1,) * 3, resolved(5), sample_index=0)),
        Arrival(0, Submit(1, common + (1,) * 3, resolved(5), sample_index=1)),
        Arrival(0, Submit(2, (0,) * 27, resolved(3, seed=1), priority=1)),
        Arrival(2, Submit(3, common + (0,) * 2, resolved(12, stop_token_ids=(1,)), extra_key="tenant")),
        Arrival(4, Submit(4, common, resolved(6, seed=2), priority=2)),
    ]
    draw = random.Random(number)
    return first + [
        Arrival(
            draw.randrange(30),
            Submit(
                request_id,
                tuple(draw.choices((0, 1), k=draw.randint(1, 30))),
                resolved(draw.randint(1, 17)),
                priority=draw.randrange(3),
            ),
        )
        for request_id in range(5, 10)
    ]


def test_every_option_takes_part() -> None:
    groups = ("cache", "scheduler", "speculative", "offload")
    assert list(VALUES) == [name for group in groups for name, _ in options_of(GROUPS[group])]


@pytest.mark.parametrize("name", list(VALUES)[:-1])
def test_refused_by_name_or_lawful(name: str) -> None:
    """Two options that each work alone, and together plan nothing, or too much."""
    pairs = [pair for pair in PAIRS if next(iter(pair)) == name]
    accepted = [world for pair in pairs for base in bases(pair) if (world := world_or_refusal(base, pair)) is not None]
    assert accepted, "some of them must run"
    for number, world in enumerate(accepted):
        play(world, arrivals(number))


def bases(pair: dict[str, Any]) -> list[dict[str, Any]]:
    if any(name.startswith("speculative") for name in pair):
        is_offloaded = any(name in OFFLOAD_OPTIONS for name in pair)
        has_model = "speculative_draft_model" in pair or pair.get("speculative_algorithm") == "draft-model"
        drafting = DRAFT_MODEL if has_model else NGRAM
        return [OFFLOADED | drafting] if is_offloaded else [SMALL | drafting]
    if any(name in OFFLOAD_OPTIONS for name in pair):
        return [SMALL, OFFLOADED]
    if "itl_quantile" in pair:
        return [SMALL, PACED]
    if "dynamic_chunking_smoothing" in pair:
        return [SMALL, SHRINKING]
    return [*BASES, ON_DISK] if any(name.startswith("kv_") for name in pair) else BASES


def world_or_refusal(base: dict[str, Any], pair: dict[str, Any]) -> World | None:
    try:
        return world_of(base | pair)
    except ConfigError as error:
        if not any(flag(option) in str(error) for option in pair):
            raise AssertionError(f"{pair} is refused without a name") from error
        return None

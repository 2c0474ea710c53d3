"""Every pair of options is either refused at the start, by name, or runs to its end under every law.

Each pair is resolved by itself. The pairs that are accepted are run together: each setting of a covering array sets
several options, and each pair meets in one of them.
"""

from __future__ import annotations

import random
from itertools import combinations, islice, product
from typing import Any

import pytest

from covering import covering
from option_worlds import SMALL, play, world_of
from slow import slow
from sluice.config import GROUPS, ConfigError, flag, options_of
from sluice.engine.messages import Submit
from sluice.testing import resolved
from worlds import Arrival, World

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
    "sliced_chunk_size": (0, 16),
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
MOST = 8
"""Options that a setting of the array sets: with more, the strict ones among them leave little to run."""


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


def test_refused_by_name_or_accepted() -> None:
    """Two options that each work alone, and are refused together for a reason that names neither."""
    accepted = [pair for pair in PAIRS if worlds_of(pair)]
    names = {name for pair in accepted for name in pair}
    assert names == set(VALUES), "each must be accepted beside some other"


@pytest.mark.parametrize("fifth", [0, *map(slow, range(1, 5))])
def test_accepted_options_are_lawful_together(fifth: int) -> None:
    """Two options that each work alone, and together plan nothing, or too much."""
    settings = covering(VALUES, lambda setting: bool(worlds_of(setting)), MOST)
    for number, setting in islice(enumerate(settings), fifth, None, 5):
        for world in worlds_of(setting):
            try:
                play(world, arrivals(number))
            except BaseException as error:
                error.add_note(f"arrivals({number}) with {setting}")
                raise


def worlds_of(setting: dict[str, Any]) -> list[World]:
    """The worlds with these options, of each base that accepts them."""
    worlds = (world_or_refusal(base, setting) for base in bases(setting))
    return [world for world in worlds if world is not None]


def bases(setting: dict[str, Any]) -> list[dict[str, Any]]:
    if any(name.startswith("speculative") for name in setting):
        is_offloaded = any(name in OFFLOAD_OPTIONS for name in setting)
        has_model = "speculative_draft_model" in setting or setting.get("speculative_algorithm") == "draft-model"
        drafting = DRAFT_MODEL if has_model else NGRAM
        return [OFFLOADED | drafting] if is_offloaded else [SMALL | drafting]
    if any(name in OFFLOAD_OPTIONS for name in setting):
        return [SMALL, OFFLOADED]
    if "itl_quantile" in setting or "sliced_chunk_size" in setting:
        return [SMALL, PACED]
    if "dynamic_chunking_smoothing" in setting:
        return [SMALL, SHRINKING]
    return [*BASES, ON_DISK] if any(name.startswith("kv_") for name in setting) else BASES


def world_or_refusal(base: dict[str, Any], setting: dict[str, Any]) -> World | None:
    try:
        return world_of(base | setting)
    except ConfigError as error:
        if not any(flag(option) in str(error) for option in setting):
            raise AssertionError(f"{setting} is refused without a name") from error
        return None

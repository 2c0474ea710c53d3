"""Laws 13 and 14: one list of events, every mode: the same tokens. The same mode twice: byte-equal plans."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cache
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from covering import covering
from recording import RecordingRunner
from scenarios import plain
from slow import examples
from sluice.engine.messages import Submit
from sluice.testing import resolved
from sluice.types import BatchPlan, SchedulerLimits, TierLimits
from worlds import Bench, World, check_ends, enough_steps, submits

SMALL = World(SchedulerLimits("mixed", 4, 12, 4, 0), num_pages=16, page_size=2)

FACTORS: dict[str, Sequence[Any]] = {
    "schedule": ["mixed", "prefill-first"],
    "chunk": [0, 4, 7],
    "running": [1, 4],
    "ahead": [(1, 0), (2, 0), (2, 1), (3, 2)],
    "pool": [(16, 2), (48, 1), (8, 4)],
    "caching": [True, False],
}
"""What a mode is made of: `ahead` is depth and lookahead, `pool` is pages and the size of a page."""
NO_TIERS = TierLimits()
BEHIND = [
    TierLimits(disk_pages=40, write_policy="write-through"),
    TierLimits(disk_pages=9, write_policy="write-back", copies_per_step=2, copies_in_flight=4),
    TierLimits(host_pages=3, disk_pages=20, write_policy="write-through", copies_per_step=3, load_back_pages=2),
    TierLimits(host_pages=6, write_policy="selective"),
]
TIERS = {"pool": [(16, 2), (8, 4)], "caching": [True], "tiers": BEHIND}
DRAFTS = {
    "tiers": [NO_TIERS, *BEHIND],
    "drafts": [1, 2, 3, 4, 5],
    "right": [0.0, 0.5, 0.8, 1.0],
    "wanted": [1.0, 0.6],
    "in_runner": [False, True],
}
LAYERS = {
    "schedule": ["mixed"],
    "chunk": [4, 7],
    "tiers": [NO_TIERS, *BEHIND],
    "stages": [1, 2, 3],
    "longest": [8, 64],
    "partial": [1, 3],
}
OF_BLOCKS = {
    "tiers": [NO_TIERS, *BEHIND],
    "whole_pages": [True, False],
    "by_block": [False, True],
}


def may_be(setting: Mapping[str, Any]) -> bool:
    """Pages are kept on a tier only where prefixes are cached."""
    return setting.get("caching", True) or setting.get("tiers", NO_TIERS) == NO_TIERS


def mode(setting: Mapping[str, Any]) -> World:
    """The world of a setting of the factors."""
    (depth, lookahead), (num_pages, page_size), running = setting["ahead"], setting["pool"], setting["running"]
    limits = SchedulerLimits(setting["schedule"], setting["chunk"], 12, running, lookahead)
    limits = replace(limits, num_draft_tokens=setting.get("drafts", 0))
    if "whole_pages" in setting:
        size = page_size if setting["whole_pages"] else 1
        by_block = setting["by_block"] and limits.chunked_prefill_size > 0
        limits = replace(limits, block_size=size, max_batch_tokens=12 + 2 * size * running, prefills_by_block=by_block)
    if "stages" in setting:
        limits = replace(
            limits,
            itl_target=1,
            sliced_chunk_size=setting["longest"],
            num_layers=4,
            pipeline_stages=setting["stages"],
            part_tokens=3,
            max_partial_prefills=setting["partial"],
        )
    return World(
        limits,
        num_pages,
        page_size,
        setting["caching"],
        depth,
        late=True,
        tiers=setting.get("tiers", NO_TIERS),
        drafts_right=setting.get("right", 0.7),
        drafts_wanted=setting.get("wanted", 1.0),
        runner_drafts=setting.get("in_runner", False),
    )


MODES = [mode(setting) for setting in covering(FACTORS)]
"""Every two values of the factors meet in one of them."""
TIERED = [mode(setting) for setting in covering(FACTORS | TIERS)]
DRAFTED = [mode(setting) for setting in covering(FACTORS | DRAFTS, may_be)]
LAYERED = [mode(setting) for setting in covering(FACTORS | LAYERS, may_be)]
BLOCKS = [mode(setting) for setting in covering(FACTORS | OF_BLOCKS, may_be)]


def play(world: World, requests: Sequence[Submit], gap: int = 2) -> tuple[Bench, list[BatchPlan]]:
    """Submit a request every `gap` steps and run to the end."""
    runner = RecordingRunner(world.shadow())
    bench = Bench.of(world, runner)
    for request in requests:
        bench.link.put(request)
        for _ in range(gap):
            bench.engine.step()
    bench.drain(enough_steps({request.request_id: request for request in requests}))
    check_ends(bench, {request.request_id: request for request in requests})
    return bench, runner.plans


@examples(24)
@given(data=st.data())
def test_all_modes_give_the_oracles_tokens(data: st.DataObject) -> None:
    """Chunked or not, mixed or not, cached or not, alone or together, ahead or not."""
    requests = [data.draw(submits(SMALL, request_id)) for request_id in range(4)]
    for world in MODES:
        play(world, requests)


@examples(12)
@given(data=st.data())
def test_modes_with_tiers_give_the_oracles_tokens(data: st.DataObject) -> None:
    """The same in every mode with pages on the host and on the disk, requested twice by every client."""
    requests = [data.draw(submits(SMALL, request_id)) for request_id in range(4)]
    requests += [replace(request, request_id=4 + request.request_id) for request in requests]
    for world in TIERED:
        play(world, requests, gap=4)


@examples(10)
@given(data=st.data())
def test_drafts_change_no_answer(data: st.DataObject) -> None:
    """Right or wrong, few or many, wanted always or at times, in every mode: the oracle's tokens, which knows none."""
    requests = [data.draw(submits(SMALL, request_id)) for request_id in range(4)]
    for world in DRAFTED:
        play(world, requests)


@examples(8)
@given(data=st.data())
def test_chunks_that_are_divided_among_steps_and_stages_change_no_answer(data: st.DataObject) -> None:
    """Layers of one stage or of several, of one prompt or of several, beside pages that come from a tier."""
    requests = [data.draw(submits(SMALL, request_id)) for request_id in range(4)]
    for world in LAYERED:
        play(world, requests)


@examples(6)
@given(data=st.data())
def test_blocks_are_filled_alike_in_every_mode(data: st.DataObject) -> None:
    """However prompts are cut, and whatever is beside a pass over a block or between two of them."""
    requests = [plain(data.draw(submits(SMALL, request_id))) for request_id in range(4)]
    requests += [replace(request, request_id=4 + request.request_id) for request in requests]
    for world in BLOCKS:
        play(world, requests)


def digest(plans: Sequence[BatchPlan]) -> str:
    return hashlib.sha256(repr(plans).encode()).hexdigest()


def fixed_requests() -> list[Submit]:
    prompts = [tuple((i * j) % 3 % 2 for j in range(5 + 3 * i)) for i in range(5)]
    return [Submit(i, prompt, resolved(6, seed=i), extra_key="ab"[i % 2]) for i, prompt in enumerate(prompts)]


@cache
def digest_of_every_mode() -> str:
    worlds = [*MODES, *TIERED, *DRAFTED, *BLOCKS][::2]
    return digest([plan for world in worlds for plan in play(world, fixed_requests())[1]])


def test_the_same_events_give_the_same_plans() -> None:
    assert digest_of_every_mode() == digest_of_every_mode.__wrapped__()


@pytest.mark.parametrize("hash_seed", ["1", "4242"])
def test_plans_do_not_depend_on_the_process(hash_seed: str) -> None:
    """A set or a hash of a string in the wrong place would order requests differently in another process."""
    code = "import test_modes_agree as t; print(t.digest_of_every_mode())"
    path = os.pathsep.join([os.path.dirname(__file__), *filter(None, sys.path)])
    env = {**os.environ, "PYTHONHASHSEED": hash_seed, "PYTHONPATH": path}
    child = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, check=True)
    assert child.stdout.strip() == digest_of_every_mode()

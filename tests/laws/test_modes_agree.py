"""Laws 13 and 14: one list of events, every mode: the same tokens. The same mode twice: byte-equal plans."""

from __future__ import annotations

import hashlib
import itertools
import os
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from recording import RecordingRunner
from scenarios import plain
from sluice.engine.messages import Submit
from sluice.testing import resolved
from sluice.types import BatchPlan, SchedulerLimits, TierLimits
from worlds import Bench, World, check_ends, enough_steps, submits

SMALL = World(SchedulerLimits("mixed", 4, 12, 4, 0), num_pages=16, page_size=2)

MODES = [
    World(SchedulerLimits(schedule, chunk, 12, running, lookahead), num_pages, page_size, caching, depth, late=True)
    for schedule, chunk, running, (depth, lookahead), (num_pages, page_size), caching in itertools.product(
        ["mixed", "prefill-first"],
        [0, 4, 7],
        [1, 4],
        [(1, 0), (2, 0), (2, 1), (3, 2)],
        [(16, 2), (48, 1), (8, 4)],
        [True, False],
    )
]

BEHIND = [
    TierLimits(disk_pages=40, write_policy="write-through"),
    TierLimits(disk_pages=9, write_policy="write-back", copies_per_step=2, copies_in_flight=4),
    TierLimits(host_pages=3, disk_pages=20, write_policy="write-through", copies_per_step=3, load_back_pages=2),
    TierLimits(host_pages=6, write_policy="selective"),
]
TIERED = [
    replace(world, tiers=BEHIND[number % len(BEHIND)])
    for number, world in enumerate([world for world in MODES if world.prefix_caching and world.num_pages < 48][::3])
]
DRAFTED = [
    replace(
        world,
        limits=replace(world.limits, num_draft_tokens=1 + number % 5),
        drafts_right=(0.0, 0.5, 0.8, 1.0)[number % 4],
        drafts_wanted=(1.0, 0.6)[number // 4 % 2],
        runner_drafts=number % 3 == 0,
    )
    for number, world in enumerate([*MODES, *TIERED])
]

BLOCKS = [
    replace(
        world,
        limits=replace(
            world.limits,
            block_size=size,
            max_batch_tokens=12 + 2 * size * world.limits.max_running_requests,
            prefills_by_block=world.limits.chunked_prefill_size > 0 and number % 3 == 0,
        ),
    )
    for number, world in enumerate([*MODES, *TIERED][::3])
    for size in (world.page_size, 1)[number % 2 :]
]


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


@settings(max_examples=4)
@given(data=st.data())
def test_all_modes_give_the_oracles_tokens(data: st.DataObject) -> None:
    """Chunked or not, mixed or not, cached or not, alone or together, ahead or not."""
    requests = [data.draw(submits(SMALL, request_id)) for request_id in range(4)]
    for world in MODES:
        play(world, requests)


@settings(max_examples=3)
@given(data=st.data())
def test_modes_with_tiers_give_the_oracles_tokens(data: st.DataObject) -> None:
    """The same in every mode with pages on the host and on the disk, requested twice by every client."""
    requests = [data.draw(submits(SMALL, request_id)) for request_id in range(4)]
    requests += [replace(request, request_id=4 + request.request_id) for request in requests]
    for world in TIERED:
        play(world, requests, gap=4)


@settings(max_examples=2)
@given(data=st.data())
def test_drafts_change_no_answer(data: st.DataObject) -> None:
    """Right or wrong, few or many, wanted always or at times, in every mode: the oracle's tokens, which knows none."""
    requests = [data.draw(submits(SMALL, request_id)) for request_id in range(4)]
    for world in DRAFTED:
        play(world, requests)


@settings(max_examples=2)
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


def digest_of_every_mode() -> str:
    worlds = [*MODES[:: len(MODES) // 24], *TIERED[::4], *DRAFTED[:: len(DRAFTED) // 12], *BLOCKS[::9]]
    return digest([plan for world in worlds for plan in play(world, fixed_requests())[1]])


def test_the_same_events_give_the_same_plans() -> None:
    assert digest_of_every_mode() == digest_of_every_mode()


@pytest.mark.parametrize("hash_seed", ["1", "4242"])
def test_plans_do_not_depend_on_the_process(hash_seed: str) -> None:
    """A set or a hash of a string in the wrong place would order requests differently in another process."""
    code = "import test_modes_agree as t; print(t.digest_of_every_mode())"
    path = os.pathsep.join([os.path.dirname(__file__), *filter(None, sys.path)])
    env = {**os.environ, "PYTHONHASHSEED": hash_seed, "PYTHONPATH": path}
    child = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, check=True)
    assert child.stdout.strip() == digest_of_every_mode()

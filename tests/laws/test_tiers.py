"""Random lives before a disk, and after a crash another one that finds what was stored."""

from __future__ import annotations

import random
from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from scenarios import random_submit
from slow import examples
from sluice.engine.messages import Abort
from sluice.kv.nodes import key_of
from sluice.types import TierLimits
from worlds import Bench, SlowDisk, World, check_ends, enough_steps, random_limits, random_offload, random_tiers


def world_with_disk(draw: random.Random) -> World:
    page_size = draw.choice([1, 2, 4])
    depth, running = draw.randint(1, 3), draw.randint(1, 4)
    tiers: TierLimits = replace(random_tiers(draw), disk_pages=draw.randint(4, 40))
    limits = random_limits(draw, page_size, running, depth)
    world = World(limits, draw.randint(6, 24), page_size, True, depth, draw.random() < 0.5, tiers)
    if draw.random() < 0.5:
        world = random_offload(draw, world)
    return replace(world, disk_fails=draw.choice([0.0, 0.0, 0.2]))


def live(bench: Bench, draw: random.Random, steps: int) -> None:
    """A few requests, half of which begin alike, to the end of the life or of all of them."""
    sent = {}
    for _ in range(steps):
        if len(sent) < 8 and draw.random() < 0.4:
            sent[len(sent)] = random_submit(draw, bench.world, request_id=len(sent))
            bench.link.put(sent[len(sent) - 1])
        if sent and draw.random() < 0.05:
            bench.link.put(Abort(draw.choice(sorted(sent))))
        bench.step()
    if steps == FOR_EVER:
        bench.drain(enough_steps(sent))
        world = bench.world
        check_ends(bench, sent, faults=world.offload is not None and bool(world.disk_fails or world.reads_fail))


FOR_EVER = 60


@examples(60)
@given(st.integers(0, 2**32))
def test_a_life_after_a_crash(seed: int) -> None:
    """A store that was cut off, an entry of a page that is none, a page of another prompt: all would be seen in the
    tokens, which are a hash of everything in the pages."""
    draw = random.Random(seed)
    world = world_with_disk(draw)
    first = SlowDisk(world, draw)
    live(first.bench(), draw, draw.randint(5, 50))
    stored = first.tiers.crash()
    second = SlowDisk(world, draw)
    bench = second.bench()
    second.tiers.adopt(first.tiers)
    assert bench.scheduler.restore(stored) <= len(stored)
    live(bench, draw, FOR_EVER)


@examples(60)
@given(st.integers(0, 2**32))
def test_the_index_is_what_the_tree_says(seed: int) -> None:
    """A page that the index forgot is lost to a restart; one that it did not forget comes back after a flush."""
    draw = random.Random(seed)
    disk = SlowDisk(world_with_disk(draw), draw)
    bench = disk.bench()
    for request_id in range(6):
        bench.link.put(random_submit(draw, bench.world, request_id=request_id))
        bench.step()
    bench.drain(5000)
    bench.step()
    tiers = bench.scheduler.state.kv.tiers
    place = tiers.order.index("disk")
    nodes = [(node, node.copies) for node in bench.scheduler.state.kv.tree.nodes()]
    held = {
        copies.pages[place]: key_of(node) for node, copies in nodes if copies is not None and copies.pages[place] >= 0
    }
    assert held == {slot: page.key for slot, page in disk.tiers.index.items()}

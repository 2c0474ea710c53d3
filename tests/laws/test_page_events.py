"""What is told of the prefix cache is what it holds, after every step of random lives."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import replace

from page_mirror import Mirror, PageMirror, picture_of
from scenarios import (
    Scenario,
    random_block_scenario,
    random_draft_scenario,
    random_offload_scenario,
    random_reload_scenario,
    random_scenario,
    random_submit,
    run,
)
from sluice.kv.events import PagesCleared
from sluice.types import Tier
from worlds import Bench, SlowDisk, World

EVENTS = [
    *(f"{what} the {tier}" for tier in Tier for what in ("stored on", "removed from")),
    *("several pages at once", "cleared", "cleared, and something left"),
]


def mirrored(make: Callable[[int], Scenario], seeds: Iterable[int], met: Counter[str]) -> None:
    """Run lives to their ends, before a mirror."""
    for seed in seeds:
        scenario = make(seed)
        try:
            run(scenario, mirror=PageMirror(scenario.world.page_size, met))
        except BaseException as error:
            error.add_note(f"{make.__name__}({seed})")
            raise


def world_with_disk(seed: int) -> World:
    world = random_reload_scenario(seed).world
    return replace(world, tiers=replace(world.tiers, disk_pages=30))


def live(bench: Bench, draw: random.Random) -> None:
    """A few requests, which are left as they are."""
    for request_id in range(draw.randint(1, 8)):
        bench.link.put(random_submit(draw, bench.world, request_id=request_id))
        for _ in range(draw.randint(1, 8)):
            bench.step()


def test_a_mirror_is_the_tree() -> None:
    """Evictions, aborts, preemptions, rejected drafts, failed copies, flushes and lost devices: a router that was told
    of a page that is gone sends requests where they wait for nothing, and one that was not told of a page sends them
    where it has to be computed again."""
    met = Counter[str]()
    mirrored(random_scenario, range(60), met)
    mirrored(random_reload_scenario, range(40), met)
    mirrored(random_offload_scenario, range(15), met)
    mirrored(random_draft_scenario, range(25), met)
    mirrored(random_block_scenario, range(15), met)
    assert [event for event in EVENTS if not met[event]] == []


def test_a_mirror_of_an_engine_that_takes_over_a_disk() -> None:
    """The pages of an engine that died are cleared; those that its disk has kept are told of by the next one."""
    restored = 0
    for seed in range(40):
        draw = random.Random(seed)
        world = world_with_disk(seed)
        first = SlowDisk(world, draw)
        watch = PageMirror(world.page_size)
        live(first.bench(events=watch.log), draw)
        mirror = Mirror()
        mirror.apply(watch.log.take())
        stored = first.tiers.crash()
        second, later = SlowDisk(world, draw), PageMirror(world.page_size)
        bench = second.bench(events=later.log)
        second.tiers.adopt(first.tiers)
        restored += bench.scheduler.restore(stored)
        mirror.apply([PagesCleared(), *later.log.take()])
        assert mirror.pages == picture_of(bench.scheduler.state.kv)
        bench.link.put(random_submit(draw, world, request_id=0))
        bench.drain(5000)
        mirror.apply(later.log.take())
        assert mirror.pages == picture_of(bench.scheduler.state.kv)
    assert restored


def test_events_that_are_not_taken_are_one_after_a_flush() -> None:
    """What was told before the cache was cleared changes nothing any more."""
    draw = random.Random(1)
    world = world_with_disk(1)
    watch = PageMirror(world.page_size)
    bench = SlowDisk(world, None).bench(events=watch.log)
    bench.link.put(random_submit(draw, world, request_id=0))
    bench.drain(5000)
    bench.engine.scheduler.flush_cache()
    assert watch.log.take() == (PagesCleared(),)
    assert watch.log.take() == ()

"""What is told of the prefix cache is what it holds, also after it was cleared or restored; test_lives.py has lives."""

from __future__ import annotations

import random
from dataclasses import replace

from page_mirror import Mirror, PageMirror, picture_of
from scenarios import (
    random_reload_scenario,
    random_submit,
)
from sluice.kv.events import PagesCleared
from worlds import Bench, SlowDisk, World


def world_with_disk(seed: int) -> World:
    world = random_reload_scenario(seed).world
    return replace(world, tiers=replace(world.tiers, disk_pages=30))


def live(bench: Bench, draw: random.Random) -> None:
    """A few requests, which are left as they are."""
    for request_id in range(draw.randint(1, 8)):
        bench.link.put(random_submit(draw, bench.world, request_id=request_id))
        for _ in range(draw.randint(1, 8)):
            bench.step()


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

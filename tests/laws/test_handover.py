"""Random lives of an engine that is handed pages of another one: laws, tokens, and what routers are told."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import replace

from page_mirror import PageMirror
from scenarios import random_reload_scenario
from sluice.engine.messages import Abort, FlushCache, Submit
from sluice.kv.handover import Taken, stored_pages, take_pages
from sluice.testing import resolved
from sluice.types import Tier, TierLimits
from worlds import Bench, SlowDisk, World, check_ends

VOCAB = 2


def worlds_of(seed: int) -> tuple[World, World]:
    """An engine that stores all its pages, and one with room for few of them."""
    draw = random.Random(seed)
    base = random_reload_scenario(seed).world
    limits = replace(base.limits, itl_target=0, block_size=0)
    stores = TierLimits(disk_pages=200, copies_per_step=64, copies_in_flight=256)
    takes = replace(stores, disk_pages=draw.choice([3, 8, 30]), write_policy="never", load_back_pages=1)
    world = replace(base, limits=limits, disk_fails=0.0, num_pages=12)
    return replace(world, tiers=stores, num_pages=64), replace(world, tiers=takes, disk_fails=draw.choice([0.0, 0.3]))


def hand_over(first: SlowDisk, source: Bench, second: SlowDisk, target: Bench, prompt: tuple[int, ...]) -> Taken:
    """Take the pages of a prompt, and put what they hold where the second engine reads it."""
    taken = take_pages(target.scheduler.state.kv, stored_pages(source.scheduler.state.kv, prompt, ""))
    for page, stored in taken.placed:
        second.tiers._pages[Tier.DISK, page] = first.tiers._pages[Tier.DISK, stored.page]
    return taken


def test_lives_that_load_pages_of_another_engine() -> None:
    """A page that gives way while it is loaded, one that is known under the wrong tokens, or a reader that is never
    forgotten breaks a law, or changes a token."""
    met = Counter[str]()
    for seed in range(25):
        draw = random.Random(seed)
        stores, takes = worlds_of(seed)
        first, second, mirror = SlowDisk(stores, None), SlowDisk(takes, draw), PageMirror(takes.page_size)
        source, target = first.bench(), second.bench(events=mirror.log)
        prompts = [
            tuple(draw.choices(range(VOCAB), k=draw.randint(1, takes.pool_tokens - 6)))
            for _ in range(draw.randint(1, 5))
        ]
        for number, prompt in enumerate(prompts):
            source.link.put(Submit(number, prompt, resolved(1)))
            source.drain(5000)
        sent: dict[int, Submit] = {}
        for number in range(12):
            prompt = draw.choice(prompts)
            taken = hand_over(first, source, second, target, prompt)
            assert taken.num_tokens <= len(prompt)
            met["all of it"] += taken.num_tokens == len(prompt) // takes.page_size * takes.page_size
            met["no room"] += taken.num_tokens < len(prompt) // takes.page_size * takes.page_size
            sent[number] = Submit(number, prompt, resolved(draw.randint(1, 5)), is_resumed=True)
            target.link.put(sent[number])
            if draw.random() < 0.1:
                target.link.put(Abort(draw.choice(sorted(sent))))
            if draw.random() < 0.05:
                target.link.put(FlushCache(number))
            for _ in range(draw.randint(0, 6)):
                target.step()
                mirror.check(target.scheduler.state.kv)
        target.drain(20_000)
        (use,) = target.scheduler.state.kv.tiers.uses()
        met["loaded"] += use.loaded
        met["failed"] += use.failed_loads
        check_ends(target, sent)
    assert [event for event in ("all of it", "no room", "loaded", "failed") if not met[event]] == []

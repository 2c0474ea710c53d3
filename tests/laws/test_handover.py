"""Random lives of an engine that is handed pages of another one: laws, tokens, and what routers are told."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import replace

from page_mirror import PageMirror
from scenarios import random_reload_scenario
from sluice.engine.messages import Abort, FlushCache, Submit
from sluice.kv.handover import Taking, stored_pages
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


def hand_over(
    first: SlowDisk, source: Bench, second: SlowDisk, target: Bench, prompt: tuple[int, ...], draw: random.Random
) -> int:
    """Take the pages of a prompt, some between two steps each, and put what they hold where the second engine reads it.
    Return how many tokens were taken."""
    taking = Taking(target.scheduler.state.kv, stored_pages(source.scheduler.state.kv, prompt, ""))
    at_once = draw.choice([1, 2, 100])
    while not taking.is_over:
        for page, stored in taking.go_on(at_once):
            second.tiers._pages[Tier.DISK, page] = first.tiers._pages[Tier.DISK, stored.page]
        if not taking.is_over:
            if draw.random() < 0.05:
                target.link.put(FlushCache(0))
            target.step()
    return taking.num_tokens


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
            taken = hand_over(first, source, second, target, prompt, draw)
            assert taken <= len(prompt)
            met["all of it"] += taken == len(prompt) // takes.page_size * takes.page_size
            met["no room"] += taken < len(prompt) // takes.page_size * takes.page_size
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

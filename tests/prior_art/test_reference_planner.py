"""The scheduler plans what the rules say, no more and no less: step for step what a second planner plans.

Laws that bound a step from above hold for a step that takes too little. A planner written from the rules alone sees
that too.
"""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from reference_planner import ReferencePlanner
from sluice.testing import resolved
from sluice.types import Submit
from support import shape
from worlds import World, random_limits

FAMILIES = 3
"""Beginnings that prompts share."""


def random_world(draw: random.Random, *, caching: bool) -> World:
    """Synchronous steps and one half-computed prompt at a time. With caching there is memory enough, so that nothing
    is evicted; without it requests wait for memory."""
    page_size, running = draw.choice([1, 2, 4, 16]), draw.randint(1, 6)
    limits = replace(
        random_limits(draw, page_size, running, depth=1),
        max_partial_prefills=1,
        long_prefill_token_threshold=0,
        dynamic_chunking=0,
        reserve="full",
        priority_preemption=False,
        low_priority_values_first=False,
        max_queued_requests=0,
        max_queued_tokens=0,
        max_batch_tokens=running + page_size * draw.choice([1, 2, 3, 8]) + draw.randrange(page_size),
    )
    if limits.policy == "deadline":  # each of its classes has half-computed prompts of its own
        limits = replace(limits, policy="fcfs", classes=())
    return World(limits, 2000 if caching else draw.randint(6, 30), page_size, caching)


def random_submit(draw: random.Random, world: World, request_id: int) -> Submit:
    """Some pages of a shared beginning, and an own end."""
    longest = min(world.pool_tokens, 12 * world.page_size)
    family, length = draw.randrange(FAMILIES), draw.randint(1, draw.randint(1, longest - 1))
    own = draw.randint(1, length)
    return Submit(
        request_id,
        (family,) * (length - own) + (FAMILIES + request_id,) * own,
        resolved(draw.randint(1, min(8, world.pool_tokens - length))),
        extra_key=draw.choice(["", "", "tenant"]),
        priority=draw.randrange(3),
    )


@pytest.mark.parametrize("caching", [False, True])
def test_plans_are_those_of_the_rules(caching: bool) -> None:
    """A budget spent twice, a prompt left out that would have fitted, a page or a slot that is kept back."""
    for seed in range(200):
        draw = random.Random(seed)
        world = random_world(draw, caching=caching)
        scheduler, runner = world.setup().build(), world.shadow(vocab_size=100)
        rules = ReferencePlanner(world.limits, world.num_pages, world.page_size, caching)
        to_send, sent = draw.randint(1, 10), 0
        while to_send or scheduler.has_work:
            for _ in range(min(to_send, draw.choice([0, 0, 1, 3]))):
                submit = random_submit(draw, world, sent)
                scheduler.add(submit)
                rules.add(submit)
                to_send, sent = to_send - 1, sent + 1
            if sent and draw.random() < 0.05:
                request_id = draw.randrange(sent)
                scheduler.abort(request_id)
                rules.end(request_id)
            plan, expected = scheduler.schedule(), rules.plan()
            found = [] if plan is None else shape(plan)
            assert found == expected, f"seed {seed}: {found}, by the rules {expected} under {world}"
            if plan is not None:
                outputs = scheduler.commit(plan, runner.launch(plan).wait())
                rules.commit(expected, outputs)

"""How much of conversations is found again with few records of recurrent states, beside what pages alone would give."""

from __future__ import annotations

import random

import pytest

from sluice.engine.messages import Submit
from sluice.testing import resolved
from sluice.types import StateLimits
from worlds import Bench, World, limits_of

PAGE, BLOCK, VOCAB = 32, 64, 1000
TURNS, NEW, ANSWER = 10, 150, 20


def cached_tokens(conversations: int, states: StateLimits | None, shared: int = 0) -> int:
    """Let conversations take turns, and return the prompt tokens that were cached.

    Args:
        shared: tokens that all of them begin with.
    """
    draw = random.Random(0)
    world = World(limits_of(chunk=512, running=2, states=states), num_pages=400, page_size=PAGE)
    bench = Bench.of(world, world.shadow(vocab_size=VOCAB))
    system = draw.choices(range(VOCAB), k=shared)
    history = [[*system, *draw.choices(range(VOCAB), k=NEW)] for _ in range(conversations)]
    found = 0
    for number in range(TURNS * conversations):
        tokens = history[number % conversations]
        bench.link.put(Submit(number, tuple(tokens), resolved(ANSWER)))
        bench.drain(200)
        found += bench.link.end(number).num_cached_tokens
        tokens += [*bench.link.tokens(number), *draw.choices(range(VOCAB), k=NEW)]
    return found


@pytest.mark.parametrize(("conversations", "records", "shared"), [(1, 2, 0), (3, 5, 0), (3, 6, 320)])
def test_ten_turns_find_nearly_all_that_pages_would_give(conversations: int, records: int, shared: int) -> None:
    by_pages = cached_tokens(conversations, None, shared)
    found = cached_tokens(conversations, StateLimits(BLOCK, records, spacing=1600), shared)
    assert found >= 0.95 * by_pages

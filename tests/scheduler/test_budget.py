"""What a step takes of prompts, where chunks shrink as contexts grow."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sluice.kv.manager import KVManager
from sluice.scheduler.budget import EqualTimeBudget
from sluice.scheduler.scheduler import Scheduler
from sluice.testing import resolved
from sluice.types import Submit
from worlds import limits_of


def cost(start: int, length: int, doubles_at: int) -> float:
    """In tokens at the beginning of a prompt, one by one."""
    return sum(1 + (position + 0.5) / doubles_at for position in range(start, start + length))


@given(
    tokens=st.integers(1, 300), page_size=st.integers(1, 32), doubles_at=st.integers(1, 500), start=st.integers(0, 900)
)
def test_a_chunk_takes_no_longer_than_the_first_one(tokens: int, page_size: int, doubles_at: int, start: int) -> None:
    """Against a sum over tokens: the formula has no room for a chunk's own tokens, or for one token more."""
    tokens = max(tokens, page_size)
    budget = EqualTimeBudget(tokens, page_size, doubles_at)
    left = budget.left(start)
    limit, floor = cost(0, tokens, doubles_at), max(page_size, tokens // 4)
    assert floor <= left <= tokens
    assert left == floor or cost(start, left, doubles_at) <= limit * (1 + 1e-9)
    assert left == tokens or cost(start, left + 1, doubles_at) > limit * (1 - 1e-9)


@given(
    st.integers(8, 200), st.integers(1, 300), st.lists(st.tuples(st.integers(0, 500), st.integers(1, 90)), max_size=5)
)
def test_what_is_taken_is_no_longer_left(tokens: int, doubles_at: int, chunks: list[tuple[int, int]]) -> None:
    """Two prompts in a step took twice as long as one."""
    budget = EqualTimeBudget(tokens, 1, doubles_at)
    total, spent = 0, 0.0
    for start, wanted in chunks:
        length = min(wanted, budget.left(start))
        is_first = total == 0
        total, spent = total + length, spent + cost(start, length, doubles_at)
        budget.take(start, length)
        assert total <= tokens
        assert is_first or length == 0 or spent <= cost(0, tokens, doubles_at) * (1 + 1e-9)


def chunks_of(prompt: int, **limits: int) -> list[int]:
    """Lengths of the chunks of one prompt, alone."""
    scheduler = Scheduler(limits_of(**limits), KVManager(num_pages=prompt // 4 + 2, page_size=4))
    scheduler.add(Submit(0, (1,) * prompt, resolved(1)))
    lengths = []
    while True:
        plan = scheduler.schedule()
        assert plan is not None
        lengths.append(plan.chunks[0].length)
        if plan.chunks[0].samples:
            return lengths


def test_chunks_shrink_to_a_quarter() -> None:
    lengths = chunks_of(600, chunk=64, dynamic_chunking=100)
    assert sum(lengths) == 600
    assert lengths[0] == 64
    assert lengths[:-1] == sorted(lengths[:-1], reverse=True)
    assert lengths[-2] == 16
    assert all(length % 4 == 0 for length in lengths[:-1])
    assert chunks_of(600, chunk=64)[:-1] == [64] * 9


@pytest.mark.parametrize(
    ("chunk", "doubles_at", "long", "steps", "short"),
    [(64, 50, 800, 10, 12), (16, 20, 1000, 60, 8)],
    ids=["half of its tokens", "a page"],
)
def test_what_one_takes_deep_in_a_prompt_leaves_half_of_a_step(
    chunk: int, doubles_at: int, long: int, steps: int, short: int
) -> None:
    """Half of a step's tokens, deep in a prompt, was all of its time: nothing was left for a short prompt beside it. So
    was a page that costs more than a whole chunk at the beginning: it kept others out until that prompt was done."""
    limits = limits_of(chunk=chunk, dynamic_chunking=doubles_at, max_partial_prefills=2)
    scheduler = Scheduler(limits, KVManager(num_pages=400, page_size=4))
    scheduler.add(Submit(0, (1,) * long, resolved(1)))
    for _ in range(steps):
        scheduler.schedule()
    scheduler.add(Submit(1, (2,) * short, resolved(1)))
    plan = scheduler.schedule()
    assert plan is not None
    assert [(each.request_id, each.samples) for each in plan.chunks] == [(0, False), (1, True)]

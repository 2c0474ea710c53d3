"""What a step says of the limit that bound it: the first one that kept something out, and nothing if nothing was."""

from __future__ import annotations

import pytest

from sluice.types import Bound
from support import queue, steps_of
from worlds import Bench, World, limits_of


def bench_of(pages: int = 400, page_size: int = 4, **limits: object) -> Bench:
    return Bench.of(World(limits_of(**limits), num_pages=pages, page_size=page_size))


@pytest.mark.parametrize("partial", [1, 2])
def test_a_prompt_alone_is_bound_by_the_chunk_until_it_ends(partial: int) -> None:
    bench = bench_of(chunk=8, max_partial_prefills=partial)
    queue(bench, 0, 24)
    assert [plan.bound_by for plan in steps_of(bench, 4)] == [
        Bound.CHUNKED_PREFILL_SIZE,
        Bound.CHUNKED_PREFILL_SIZE,
        Bound.NOTHING,
        Bound.NOTHING,
    ]


@pytest.mark.parametrize(
    ("limits", "lengths", "bound"),
    [
        ({"chunk": 64, "running": 1}, [4, 4], Bound.MAX_RUNNING_REQUESTS),
        ({"chunk": 64, "batch": 9}, [4, 4, 4], Bound.MAX_BATCH_TOKENS),
        ({"chunk": 64, "max_prefill_tokens": 8}, [4, 4, 4], Bound.MAX_PREFILL_TOKENS),
        ({"chunk": 64, "max_prefill_requests": 2}, [4, 4, 4], Bound.MAX_PREFILL_REQUESTS),
        ({"chunk": 64, "long_prefill_token_threshold": 8}, [20], Bound.LONG_PREFILL_TOKEN_THRESHOLD),
        ({"chunk": 0, "batch": 12, "running": 4}, [6, 8], Bound.MAX_BATCH_TOKENS),
        ({"chunk": 0, "batch": 14, "running": 4}, [6, 8], Bound.NOTHING),
        ({"chunk": 64, "max_prefill_tokens": 8}, [4, 4], Bound.NOTHING),
        (
            {"chunk": 16, "max_partial_prefills": 2, "long_prefill_token_threshold": 8},
            [100, 8],
            Bound.LONG_PREFILL_TOKEN_THRESHOLD,
        ),
        ({"chunk": 8, "max_prefill_tokens": 8}, [20], Bound.CHUNKED_PREFILL_SIZE),
        ({"chunk": 8, "batch": 8}, [20], Bound.CHUNKED_PREFILL_SIZE),
        ({"chunk": 64, "max_partial_prefills": 1, "long_prefill_token_threshold": 8}, [8, 20, 20], None),
    ],
)
def test_the_limit_that_keeps_a_prompt_out_is_reported(
    limits: dict[str, int], lengths: list[int], bound: Bound | None
) -> None:
    """Of two that do, the first: in the last case a prompt is cut before another is kept out for that."""
    bench = bench_of(**limits)
    for request_id, length in enumerate(lengths):
        queue(bench, request_id, length)
    assert steps_of(bench)[0].bound_by is (bound or Bound.LONG_PREFILL_TOKEN_THRESHOLD)


@pytest.mark.parametrize(("length", "taken"), [(12, [4]), (11, [4, 4])])
def test_a_prompt_that_reaches_the_prefill_budget_is_not_cut_behind_another(length: int, taken: list[int]) -> None:
    """One token less, and it may be."""
    bench = bench_of(chunk=8, max_prefill_tokens=16)
    queue(bench, 0, 4)
    queue(bench, 1, length)
    (plan,) = steps_of(bench)
    assert [chunk.length for chunk in plan.chunks] == taken


def test_a_prompt_that_may_not_be_cut_is_reported() -> None:
    """As many prompts are half computed as may be: the next one goes whole or waits."""
    bench = bench_of(pages=4000, chunk=32, max_partial_prefills=2)
    queue(bench, 0, 2000)
    queue(bench, 1, 300)
    steps_of(bench)
    queue(bench, 2, 24)
    (plan,) = steps_of(bench)
    assert ([chunk.request_id for chunk in plan.chunks], plan.bound_by) == ([0, 1], Bound.MAX_PARTIAL_PREFILLS)


def test_a_partly_computed_prompt_that_gets_nothing_is_reported() -> None:
    bench = bench_of(chunk=16, policy="priority", max_partial_prefills=2, max_prefill_requests=1)
    queue(bench, 0, 100)
    steps_of(bench)
    queue(bench, 1, 400, priority=1)
    (plan,) = steps_of(bench)
    assert ([chunk.request_id for chunk in plan.chunks], plan.bound_by) == ([1], Bound.MAX_PREFILL_REQUESTS)


def test_a_partly_computed_prompt_without_a_page_is_reported() -> None:
    bench = bench_of(pages=20, chunk=8)
    queue(bench, 0, 60, max_tokens=1)
    steps_of(bench)
    taken = bench.scheduler.state.kv.pool.take(bench.scheduler.state.kv.pool.num_free)
    assert bench.scheduler.scheduler.schedule() is None
    bench.scheduler.state.kv.pool.give(taken[:1])
    plan = bench.scheduler.scheduler.schedule()
    assert plan is not None
    assert ([chunk.length for chunk in plan.chunks], plan.bound_by) == ([4], Bound.KV_PAGES)


@pytest.mark.parametrize("partial", [1, 2])
def test_decodes_that_fill_the_batch_bind_nothing_if_no_request_waits(partial: int) -> None:
    bench = bench_of(chunk=8, batch=4, running=4, max_partial_prefills=partial)
    for request_id in range(4):
        queue(bench, request_id, 1)
    steps_of(bench)
    (plan,) = steps_of(bench)
    assert (plan.num_decodes, plan.bound_by) == (4, Bound.NOTHING)


@pytest.mark.parametrize("partial", [1, 2])
def test_the_last_token_of_a_budget_can_be_had(partial: int) -> None:
    bench = bench_of(page_size=1, chunk=5, max_partial_prefills=partial)
    queue(bench, 0, 4)
    queue(bench, 1, 1)
    (plan,) = steps_of(bench)
    assert (len(plan.chunks), plan.bound_by) == (2, Bound.NOTHING)

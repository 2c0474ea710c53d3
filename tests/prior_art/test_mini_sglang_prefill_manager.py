"""The rules of Mini-SGLang's PrefillManager, one test each."""

from __future__ import annotations

import pytest

from sluice.scheduler.reserve import FullReservation
from sluice.types import BatchResult, Bound
from support import queue, shapes_of, steps_of
from worlds import Bench, World, limits_of


def bench_of(pages: int = 400, page_size: int = 4, **limits: object) -> Bench:
    return Bench.of(World(limits_of(**limits), num_pages=pages, page_size=page_size))


def test_running_half_computed_and_waiting_requests_are_told_apart() -> None:
    bench = bench_of(chunk=8, running=2)
    for request_id, length in enumerate([4, 20, 4]):
        queue(bench, request_id, length)
    steps_of(bench)
    state = bench.scheduler.state
    assert (list(state.decoding), list(state.partial), [r.id for r in state.waiting]) == ([0], [1], [2])
    assert state.free_slots == []
    assert state.kv.pool.num_free == 400 - 2, "a page for the first, one for half a chunk"


def test_a_half_prefilled_request_samples_nothing_and_a_token_for_it_is_an_error() -> None:
    bench = bench_of(chunk=8, running=2)
    queue(bench, 0, 20)
    plan = bench.scheduler.schedule()
    assert plan is not None
    assert not plan.chunks[0].samples
    with pytest.raises(AssertionError, match="more samples than rows"):
        bench.scheduler.commit(plan, BatchResult(plan.step, ((5,),)))
    assert list(bench.scheduler.state.requests[0].tokens) == [10] * 20


def test_running_requests_reserve_what_they_may_still_make() -> None:
    bench = bench_of(chunk=64, running=4, pages=10, reserve="full")
    queue(bench, 0, 4, max_tokens=20)
    queue(bench, 1, 4, max_tokens=12)
    queue(bench, 2, 4, max_tokens=4)
    (plan,) = steps_of(bench)
    assert [chunk.request_id for chunk in plan.chunks] == [0, 1], "6 + 4 of 10 pages are spoken for"
    assert plan.bound_by is Bound.KV_PAGES
    assert FullReservation().tokens(bench.scheduler.state.requests[0]) == 24


def test_under_full_reservation_no_request_is_preempted() -> None:
    bench = bench_of(chunk=64, running=4, pages=10, reserve="full")
    for request_id in range(6):
        queue(bench, request_id, 3 + request_id, max_tokens=12)
    while bench.scheduler.has_work:
        assert steps_of(bench)
        assert not any(request.preemptions for request in bench.scheduler.state.requests.values())


def test_memory_is_checked_before_and_after_the_prefix_is_locked() -> None:
    """Before locking, the matched pages count as evictable; after it they do not, and the request must wait."""
    bench = bench_of(chunk=64, running=4, pages=9, page_size=1, reserve="full")
    queue(bench, 0, 4, max_tokens=1, token=5)
    steps_of(bench)
    queue(bench, 1, 1, max_tokens=4)
    steps_of(bench)
    state = bench.scheduler.state
    assert (state.kv.available, state.kv.tree.num_evictable) == (8, 4)
    queue(bench, 2, 5, max_tokens=2, token=5)
    (plan,) = steps_of(bench)
    assert [chunk.request_id for chunk in plan.chunks] == [1]
    assert state.kv.tree.num_evictable == 4, "what was locked for the check is unlocked again"
    assert plan.bound_by is Bound.KV_PAGES


def test_half_computed_prompts_come_first_then_those_not_tried_in_order() -> None:
    """[A partial, B and C done, D refused, E] becomes [A, D, E]."""
    bench = bench_of(chunk=24, running=8, max_partial_prefills=2, max_prefill_requests=3)
    a, b, c, d, e = range(5)
    for request_id, length in ((a, 60), (b, 4), (c, 4), (d, 4), (e, 4)):
        queue(bench, request_id, length)
    (plan,) = steps_of(bench)
    state = bench.scheduler.state
    assert sorted(chunk.request_id for chunk in plan.chunks) == [a, b, c]
    assert [*state.partial, *(request.id for request in state.waiting)] == [a, d, e]


def test_a_shared_system_prompt_is_computed_once() -> None:
    bench = bench_of(chunk=64, running=4)
    queue(bench, 0, 16, token=5)
    queue(bench, 1, 18, token=5)
    first, second = steps_of(bench, 2)
    assert [chunk.request_id for chunk in first.chunks] == [0], "the follower is held back until the pages are there"
    follower = second.chunks[-1]
    assert (follower.request_id, follower.start) == (1, 16)
    assert follower.new_pages[:4] == first.chunks[0].new_pages[:4]


def test_a_prompt_of_12000_tokens_takes_two_steps_of_8192() -> None:
    bench = bench_of(chunk=8192, running=4, pages=300, page_size=64)
    queue(bench, 0, 12_000)
    queue(bench, 1, 10)
    first, second, third = shapes_of(bench, 3)
    assert first == [(0, 0, 8192)]
    assert second == [(0, 8192, 3808), (1, 0, 10)]
    assert third == [(0, 12_000, 1), (1, 10, 1)]

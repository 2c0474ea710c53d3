"""Limits of the queue: how much may wait, and what counts as waiting."""

from __future__ import annotations

import pytest

from sluice.engine.messages import Submit
from sluice.scheduler.queue_limits import QueueFull
from sluice.testing import resolved
from sluice.types import FinishReason, Output
from support import queue, shapes_of, steps_of, until_preemption
from worlds import Bench, World, limits_of


def bench_of(*, running: int = 2, num_pages: int = 64, page_size: int = 4, chunk: int = 8, **limits: int) -> Bench:
    return Bench.of(World(limits_of(chunk=chunk, running=running, **limits), num_pages, page_size))


def test_a_burst_that_fits_the_free_slots_is_no_queue() -> None:
    """An idle engine refused the second of two requests that it could run at once."""
    bench = bench_of(max_queued_requests=1)
    queue(bench, 10, 2)
    bench.drain(100)
    for request_id in range(3):
        queue(bench, request_id + 20, 2)
    with pytest.raises(QueueFull, match="3 requests wait, --max-queued-requests is 1"):
        queue(bench, 30, 2)
    assert [len(step) for step in shapes_of(bench)] == [2]
    with pytest.raises(QueueFull, match="1 requests wait"):
        queue(bench, 40, 2)


def test_free_slots_that_cannot_be_used_are_no_room() -> None:
    """With memory short a slot stays free for ever, and the queue would grow by as many as there are slots."""
    bench = bench_of(running=8, num_pages=4, max_queued_requests=2)
    queue(bench, 0, 8, 8)
    steps_of(bench)
    queue(bench, 1, 8, 8)
    steps_of(bench)
    assert len(bench.scheduler.state.free_slots) == 7
    queue(bench, 2, 8, 8)
    with pytest.raises(QueueFull):
        queue(bench, 3, 8, 8)


def test_a_preempted_request_is_never_refused() -> None:
    """It was accepted, and a client reads its stream."""
    bench = bench_of(running=3, num_pages=10, page_size=2, max_queued_requests=1)
    for request_id in range(3):
        queue(bench, request_id, 2, 9)
    assert until_preemption(bench)
    bench.drain(500)
    assert {bench.link.end(request_id).finish_reason for request_id in range(3)} == {FinishReason.LENGTH}


def test_tokens_are_those_still_to_be_prefilled() -> None:
    """A half-computed prompt that counts in full keeps new requests out longer than they must wait for it."""
    bench = bench_of(running=4, max_queued_tokens=40)
    queue(bench, 0, 100)
    queue_refused(bench, 1, 8, "100 uncached tokens wait and the prompt adds 8")
    for _ in range(8):  # 64 of its tokens are planned
        assert steps_of(bench)
    queue_refused(bench, 2, 8, "36 uncached tokens wait and the prompt adds 8")
    queue(bench, 3, 4)
    queue_refused(bench, 4, 1, "40 uncached tokens wait")


def queue_refused(bench: Bench, request_id: int, length: int, said: str) -> None:
    with pytest.raises(QueueFull, match=said):
        queue(bench, request_id, length)


def test_a_prompt_larger_than_the_queue_may_wait_alone() -> None:
    """Else no server with such a limit could serve it."""
    bench = bench_of(max_queued_tokens=10)
    queue(bench, 0, 50)
    bench.drain(500)
    queue(bench, 1, 50)
    bench.drain(500)


def test_cached_tokens_do_not_count() -> None:
    bench = bench_of(running=1, max_queued_tokens=20)
    queue(bench, 0, 40, token=7)
    bench.drain(100)
    queue(bench, 1, 4, 30)
    steps_of(bench)
    for request_id in range(2, 6):  # the last page of each is computed again: 4 tokens
        queue(bench, request_id, 40, token=7)
    queue(bench, 6, 4)
    queue_refused(bench, 7, 40, "20 uncached tokens wait and the prompt adds 40")


def test_tokens_cached_meanwhile_are_counted_again() -> None:
    """Followers of one prompt that came before it was computed fill the queue with tokens that need no computation."""
    bench = bench_of(running=1, max_queued_tokens=100)
    queue(bench, 0, 40, token=7)
    queue(bench, 1, 40, token=7)
    queue_refused(bench, 2, 40, "80 uncached")
    for _ in range(6):
        steps_of(bench)
    queue(bench, 3, 90)
    bench.drain(500)
    assert bench.scheduler.state.waiting.uncached_tokens == 0


def test_the_count_is_kept_over_a_life() -> None:
    bench = bench_of(running=1, num_pages=12, max_queued_tokens=30)
    for request_id in range(4):
        queue(bench, request_id, 5)
    bench.scheduler.abort(2)
    assert bench.scheduler.state.waiting.uncached_tokens == 15
    bench.drain(500)
    assert bench.scheduler.state.waiting.uncached_tokens == 0


def test_the_engine_says_that_it_is_overloaded() -> None:
    """A client would blame the request for a refusal that looks like any other error, and not try again."""
    bench = bench_of(running=1, max_queued_requests=1)
    bench.link.put(*(Submit(i, (1, 2, 3), resolved(4)) for i in range(4)))
    bench.drain(100)
    reasons = [bench.link.end(i).finish_reason for i in range(4)]
    assert reasons == [FinishReason.LENGTH] * 2 + [FinishReason.OVERLOAD] * 2
    said = "the queue is full: 2 requests wait, --max-queued-requests is 1"
    assert bench.link.end(3) == Output(3, 0, (), 0, FinishReason.OVERLOAD, said)


def test_a_request_that_another_engine_had_begun_is_accepted() -> None:
    """After a crash all requests that ran come at once."""
    bench = bench_of(running=1, max_queued_requests=1, max_queued_tokens=4)
    for request_id in range(5):
        bench.scheduler.add(Submit(request_id, (1, 2, 3), resolved(4), output_ids=(0,), is_resumed=True))
    assert len(bench.scheduler.state.waiting) == 5


def test_a_request_is_new_by_default() -> None:
    bench = bench_of(running=1, max_queued_requests=1)
    for request_id in range(2):
        bench.scheduler.scheduler.add(Submit(request_id, (1, 2, 3), resolved(4)))
    with pytest.raises(QueueFull):
        bench.scheduler.scheduler.add(Submit(2, (1, 2, 3), resolved(4)))

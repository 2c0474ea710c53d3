"""The order of the waiting queue, priorities, and duplicates."""

from __future__ import annotations

import pytest

from sluice.scheduler.queue import PROMOTE_AFTER, WINDOW
from sluice.scheduler.request import Status
from sluice.testing import resolved
from sluice.types import Submit
from support import queue, shapes_of, steps_of
from worlds import Bench, World, limits_of


def bench_of(pages: int = 400, page_size: int = 4, **limits: object) -> Bench:
    return Bench.of(World(limits_of(**limits), num_pages=pages, page_size=page_size))


def admitted(bench: Bench, steps: int) -> list[int]:
    return [new.request_id for plan in steps_of(bench, steps) for new in plan.new_slots]


def test_higher_priority_first_and_fcfs_within_one() -> None:
    bench = bench_of(running=1, policy="priority")
    for request_id, priority in enumerate([0, 5, -1, 5]):
        queue(bench, request_id, 2, max_tokens=1, priority=priority)
    assert admitted(bench, 4) == [1, 3, 0, 2]


def test_without_a_word_the_priority_is_nought() -> None:
    scheduler = bench_of(running=1, policy="priority").scheduler.scheduler
    scheduler.add(Submit(0, (1, 1), resolved(1), priority=0))
    scheduler.add(Submit(1, (1, 1), resolved(1)))
    scheduler.add(Submit(2, (1, 1), resolved(1), priority=0))
    assert [request.id for request in scheduler.state.waiting] == [0, 1, 2]


def test_low_values_first() -> None:
    bench = bench_of(running=1, policy="priority", low_priority_values_first=True)
    for request_id, priority in enumerate([0, 5, -1, 5]):
        queue(bench, request_id, 2, max_tokens=1, priority=priority)
    assert admitted(bench, 4) == [2, 0, 1, 3]


def test_other_policies_ignore_the_priority() -> None:
    bench = bench_of(running=1)
    for request_id, priority in enumerate([0, 5, -1]):
        queue(bench, request_id, 2, max_tokens=1, priority=priority)
    assert admitted(bench, 3) == [0, 1, 2]


@pytest.mark.parametrize("policy", ["priority", "lpm"])
def test_a_request_that_has_waited_long_enough_goes_first(policy: str) -> None:
    """Or a stream of better placed requests would keep it waiting for ever."""
    bench = bench_of(running=1, chunk=64, policy=policy)
    queue(bench, 0, 9, max_tokens=1, token=5)
    steps_of(bench)
    queue(bench, 1, 9, max_tokens=1, priority=0)
    state = bench.scheduler.state
    state.step += PROMOTE_AFTER - 1
    queue(bench, 2, 9, max_tokens=1, priority=9, token=5)
    queue(bench, 3, 9, max_tokens=1, priority=9, token=5)
    assert admitted(bench, 3) == [2, 1, 3]


def test_a_promotion_ends_with_the_wait_it_was_for() -> None:
    bench = bench_of(running=1, chunk=64, policy="priority")
    queue(bench, 0, 9, priority=0)
    state = bench.scheduler.state
    state.step += PROMOTE_AFTER
    queue(bench, 1, 9, priority=9)
    assert admitted(bench, 1) == [0]
    state.requests[0].priority_preemptions += 1
    state.preempt(state.requests[0])
    assert [waiting.id for waiting in state.waiting] == [1, 0]


def test_a_higher_priority_takes_the_slot_of_a_running_lower_one() -> None:
    bench = bench_of(running=2, policy="priority", priority_preemption=True)
    for request_id in range(2):
        queue(bench, request_id, 4, priority=request_id)
    steps_of(bench, 2)
    queue(bench, 2, 4, priority=5)
    steps_of(bench)
    state = bench.scheduler.state
    assert state.requests[0].status is Status.WAITING
    assert state.requests[0].priority_preemptions == 1
    steps_of(bench)
    assert sorted(state.decoding) == [1, 2]
    while bench.scheduler.has_work:
        steps_of(bench)


def test_one_makes_way_at_a_time() -> None:
    """One that drains may make room enough: no second one loses its slot for the same want."""
    bench = bench_of(running=3, lookahead=1, policy="priority", priority_preemption=True)
    for request_id in range(3):
        queue(bench, request_id, 4)
    steps_of(bench, 2)
    state = bench.scheduler.state
    assert len(state.decoding) == 3
    assert bench.scheduler.schedule() is not None
    queue(bench, 3, 4, priority=5)
    for _ in range(2):
        bench.scheduler.schedule()
        assert (len(state.decoding), sorted(state.draining)) == (2, [2])


def test_equal_priorities_do_not_preempt() -> None:
    bench = bench_of(running=1, policy="priority", priority_preemption=True)
    queue(bench, 0, 4, priority=3)
    steps_of(bench)
    queue(bench, 1, 4, priority=3)
    steps_of(bench, 3)
    assert bench.scheduler.state.requests[0].priority_preemptions == 0


def test_preemption_makes_room_in_memory_too() -> None:
    bench = bench_of(pages=10, running=4, chunk=64, policy="priority", priority_preemption=True, reserve="full")
    queue(bench, 0, 20, max_tokens=8, priority=0)
    steps_of(bench)
    queue(bench, 1, 20, max_tokens=8, priority=1)
    steps_of(bench, 2)
    state = bench.scheduler.state
    assert state.requests[1].status is not Status.WAITING
    assert state.requests[0].status is Status.WAITING


def test_lpm_beyond_its_window_is_fcfs() -> None:
    """Matching a queue of any length in every step would cost more than it saves."""
    bench = bench_of(pages=4000, running=1, chunk=64, policy="lpm")
    queue(bench, 0, 9, max_tokens=1, token=5)
    steps_of(bench)
    for request_id in range(1, WINDOW + 2):
        queue(bench, request_id, 9, max_tokens=1, token=5 if request_id == WINDOW else None)
    assert admitted(bench, 2) == [1, WINDOW]


@pytest.mark.parametrize("policy", ["fcfs", "lpm", "priority"])
@pytest.mark.parametrize("partial", [1, 3])
def test_of_duplicates_one_computes_and_the_others_wait(policy: str, partial: int) -> None:
    """Under every policy; and who shares nothing with them goes by."""
    bench = bench_of(pages=400, running=8, chunk=16, policy=policy, max_partial_prefills=partial)
    lengths = {0: 42, 1: 42, 2: 42, 3: 42, 9: 6}
    for request_id, length in lengths.items():
        queue(bench, request_id, length, token=5 if length == 42 else 6)
    prefilled = dict.fromkeys(lengths, 0)
    for plan in steps_of(bench, 20):
        for chunk in plan.chunks:
            prefilled[chunk.request_id] += chunk.length if chunk.start < lengths[chunk.request_id] else 0
    assert sorted(prefilled.values()) == [2, 2, 2, 6, 42]


def test_a_follower_goes_on_alone_when_its_leader_is_aborted() -> None:
    bench = bench_of(running=8, chunk=8)
    queue(bench, 0, 40, token=5)
    queue(bench, 1, 40, token=5)
    steps_of(bench, 2)
    bench.scheduler.abort(0)
    assert shapes_of(bench) == [[(1, 16, 8)]]


def test_no_request_is_held_back_without_a_prefix_cache() -> None:
    world = World(limits_of(running=8, chunk=64), num_pages=400, page_size=4, prefix_caching=False)
    bench = Bench.of(world)
    queue(bench, 0, 20, token=5)
    queue(bench, 1, 20, token=5)
    assert shapes_of(bench) == [[(0, 0, 20), (1, 0, 20)]]


def test_equal_prompts_one_token_longer_than_a_page_share_it() -> None:
    bench = bench_of(running=8, chunk=64)
    queue(bench, 0, 5, token=5)
    queue(bench, 1, 5, token=5)
    assert shapes_of(bench, 2) == [[(0, 0, 5)], [(0, 5, 1), (1, 4, 1)]]


def test_duplicates_under_different_keys_are_none() -> None:
    bench = bench_of(running=8, chunk=64)
    queue(bench, 0, 20, token=5, extra_key="a")
    queue(bench, 1, 20, token=5, extra_key="b")
    assert shapes_of(bench) == [[(0, 0, 20), (1, 0, 20)]]


@pytest.mark.parametrize("cause", ["preemptions", "priority_preemptions"])
def test_who_was_sent_back_stands_at_the_head_of_its_class(cause: str) -> None:
    bench = bench_of(running=2, policy="priority")
    queue(bench, 3, 4, priority=1)
    steps_of(bench, 2)
    queue(bench, 1, 4, priority=1)
    queue(bench, 2, 4, priority=2)
    request = bench.scheduler.state.requests[3]
    setattr(request, cause, 1)
    bench.scheduler.state.preempt(request)
    assert [waiting.id for waiting in bench.scheduler.state.waiting] == [2, 3, 1]


def test_equal_next_pages_behind_different_beginnings_are_no_duplicates() -> None:
    """The page that is being computed is then not the one that is wanted."""
    bench = bench_of(running=8, chunk=64)
    first, second, third, shared = ([token] * 4 for token in (1, 2, 3, 9))
    for request_id, prompt in enumerate([first + second + [0], first + third + [0]]):
        bench.scheduler.add(Submit(request_id, tuple(prompt), resolved(1)))
        steps_of(bench)
    bench.scheduler.add(Submit(2, tuple(first + second + shared + [0]), resolved(1)))
    bench.scheduler.add(Submit(3, tuple(first + third + shared + [0]), resolved(1)))
    assert shapes_of(bench) == [[(2, 8, 5), (3, 8, 5)]]


@pytest.mark.parametrize("counted", ["preemptions", "priority_preemptions"])
def test_one_sent_back_in_the_middle_of_its_prompt_goes_first(counted: str) -> None:
    """It has no output yet that would tell, and has waited for its turn once already."""
    bench = Bench.of(World(limits_of(chunk=8, running=1), num_pages=32, page_size=2))
    queue(bench, 1, 20)
    steps_of(bench)
    queue(bench, 0, 4)
    request = bench.scheduler.state.requests[1]
    setattr(request, counted, 1)
    bench.scheduler.state.preempt(request)
    assert [chunk.request_id for chunk in steps_of(bench)[0].chunks] == [1]

"""Several prompts partly computed at once: none is stuck, none is starved."""

from __future__ import annotations

from collections.abc import Collection

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slow import examples
from sluice.kv.manager import KVManager
from sluice.scheduler.fair import DUE_AFTER
from sluice.scheduler.scheduler import Scheduler
from sluice.testing import resolved
from sluice.testing.laws import steps_to_prefill
from sluice.types import BatchResult, Bound, SchedulerLimits, Submit
from support import queue, shape, shapes_of, steps_of
from worlds import Bench, World, limits_of


def bench_of(pages: int = 4000, page_size: int = 4, **limits: object) -> Bench:
    return Bench.of(World(limits_of(**{"max_partial_prefills": 2, **limits}), num_pages=pages, page_size=page_size))


def test_a_short_prompt_overtakes_a_long_one_in_the_step_it_arrives() -> None:
    bench = bench_of(chunk=32, running=4)
    queue(bench, 0, 1000)
    assert shapes_of(bench) == [[(0, 0, 32)]], "alone it has the full budget"
    queue(bench, 1, 8)
    assert shapes_of(bench) == [[(0, 32, 24), (1, 0, 8)]]


def test_the_long_one_keeps_half_of_every_step_with_any_arrivals() -> None:
    bench = bench_of(chunk=32, running=50)
    queue(bench, 0, 400)
    taken = []
    for request_id in range(1, 20):
        queue(bench, 2 * request_id, 16, max_tokens=1)
        queue(bench, 2 * request_id + 1, 16, max_tokens=1)
        (plan,) = steps_of(bench)
        taken.append(sum(chunk.length for chunk in plan.chunks if chunk.request_id == 0))
    assert min(taken) >= 16


def test_the_shortest_of_the_others_goes_first() -> None:
    bench = bench_of(chunk=32, running=8, max_partial_prefills=3)
    queue(bench, 0, 400)
    queue(bench, 1, 100)
    queue(bench, 2, 12)
    queue(bench, 3, 4)
    (plan,) = steps_of(bench)
    assert shape(plan) == [(0, 0, 16), (3, 0, 4), (2, 0, 12)]


def test_a_short_prompt_that_fits_whole_needs_no_partial_place() -> None:
    """Two long prompts hold both places; short ones go by all the same."""
    bench = bench_of(chunk=32, running=8)
    queue(bench, 0, 2000)
    queue(bench, 1, 400)
    steps_of(bench)
    queue(bench, 2, 300)
    queue(bench, 3, 8)
    (plan,) = steps_of(bench)
    assert (3, 0, 8) in shape(plan)
    assert len(bench.scheduler.state.partial) == 2
    assert next(iter(bench.scheduler.state.waiting)).id == 2


def test_no_half_computed_prompt_waits_for_more_than_eight_steps() -> None:
    bench = bench_of(chunk=8, running=40, max_partial_prefills=4)
    for request_id in range(4):
        queue(bench, request_id, 120)
        steps_of(bench)
    for request_id in range(4, 30):
        queue(bench, request_id, 8, max_tokens=1)
        steps_of(bench)
        state = bench.scheduler.state
        assert all(state.step - 1 - request.planned_at <= 8 for request in state.partial.values())
    assert DUE_AFTER <= 8


def test_a_prompt_too_large_for_memory_is_not_overtaken_for_ever() -> None:
    """While the one that came first waits for memory, small ones behind it must not keep taking it."""
    bench = bench_of(pages=30, chunk=32, running=8, reserve="full")
    queue(bench, 0, 20, max_tokens=40)
    steps_of(bench)
    queue(bench, 1, 80, max_tokens=4)
    admitted = []
    for request_id in range(2, 40):
        queue(bench, request_id, 4, max_tokens=20)
        (plan,) = steps_of(bench)
        admitted += [new.request_id for new in plan.new_slots]
    assert admitted == []
    while 1 not in admitted:
        (plan,) = steps_of(bench)
        admitted += [new.request_id for new in plan.new_slots]
    assert admitted[0] == 1


def test_one_of_middling_length_is_not_starved_by_shorter_ones() -> None:
    """It is neither the first nor ever the shortest: every few steps a page is due to it, one and no more."""
    bench = bench_of(chunk=32, running=50)
    queue(bench, 0, 4000)
    queue(bench, 1, 400)
    steps_of(bench)
    taken = []
    for request_id in range(2, 22):
        queue(bench, request_id, 16, max_tokens=1)
        (plan,) = steps_of(bench)
        taken.append([chunk.length for chunk in plan.chunks if chunk.request_id == 1])
    gaps = [[]] * (DUE_AFTER - 1)
    assert taken == ([*gaps, [4]] * 5)[: len(taken)]


def test_of_duplicates_among_the_short_ones_one_is_computed() -> None:
    """Neither is the first of all; the second becomes a follower when its leader is admitted, in the same step."""
    bench = bench_of(chunk=64, running=8)
    queue(bench, 0, 1000)
    queue(bench, 1, 12, token=5)
    queue(bench, 2, 12, token=5)
    assert shapes_of(bench) == [[(0, 0, 52), (1, 0, 12)]]


def test_a_waiting_prompt_of_a_higher_class_is_the_first_while_a_place_is_free() -> None:
    bench = bench_of(chunk=32, running=8, policy="priority")
    queue(bench, 0, 100)
    steps_of(bench)
    queue(bench, 1, 300, priority=1)
    assert shapes_of(bench) == [[(1, 0, 16), (0, 32, 16)]]
    queue(bench, 2, 300, priority=2)
    assert shapes_of(bench) == [[(1, 16, 16), (0, 48, 16)]], "both places are taken"


def test_the_shortest_is_who_has_least_left_to_compute() -> None:
    """A long prompt that is nearly all cached goes before a shorter one that is not."""
    bench = bench_of(chunk=64, running=8)
    queue(bench, 0, 60, max_tokens=1, token=5)
    steps_of(bench, 2)
    queue(bench, 1, 1000)
    queue(bench, 2, 20)
    queue(bench, 3, 64, token=5)
    assert shapes_of(bench) == [[(1, 0, 40), (3, 60, 4), (2, 0, 20)]]


def test_under_lpm_the_one_with_most_cached_goes_before_shorter_ones() -> None:
    bench = bench_of(chunk=64, running=8, policy="lpm")
    queue(bench, 0, 60, max_tokens=1, token=5)
    steps_of(bench, 2)
    queue(bench, 1, 1000)
    queue(bench, 2, 4)
    queue(bench, 3, 80, token=5)
    assert shapes_of(bench) == [[(1, 0, 40), (3, 60, 20), (2, 0, 4)]]


def test_what_a_half_computed_prompt_takes_is_no_longer_reserved_for_it() -> None:
    """Counted twice, its pages would keep out a prompt behind it, for which the pool has exactly the room."""
    bench = bench_of(pages=21, chunk=16, running=8, max_partial_prefills=3, policy="priority")
    queue(bench, 0, 40, max_tokens=1)
    steps_of(bench)
    queue(bench, 1, 4, max_tokens=1, priority=1)
    queue(bench, 2, 28, max_tokens=1)
    bench.scheduler.scheduler.limits = limits_of(chunk=64, running=8, max_partial_prefills=3, policy="priority")
    assert shapes_of(bench) == [[(1, 0, 4), (0, 16, 24), (2, 0, 28)]]


def test_what_is_due_to_all_leaves_room_for_who_waits() -> None:
    bench = bench_of(chunk=32, running=50)
    queue(bench, 0, 400)
    queue(bench, 1, 100)
    steps_of(bench)
    for request in bench.scheduler.state.partial.values():
        request.planned_at -= DUE_AFTER
    queue(bench, 2, 8)
    assert shapes_of(bench) == [[(0, 16, 16), (1, 16, 8), (2, 0, 8)]]


def test_what_is_due_is_lengthened_in_its_row() -> None:
    """Two rows of one request in a step would be two writers of its pages."""
    bench = bench_of(chunk=32, running=50)
    queue(bench, 0, 4000)
    queue(bench, 1, 400)
    steps_of(bench)
    bench.scheduler.state.requests[1].planned_at -= DUE_AFTER
    queue(bench, 2, 4)
    assert shapes_of(bench) == [[(1, 16, 16), (0, 16, 12), (2, 0, 4)]]


def test_one_that_is_due_may_take_the_pages_of_another_half_computed_prompt() -> None:
    """Which then waits, and may start again in the same step from what is cached: with one chunk, not two."""
    limits = {"long_prefill_token_threshold": 8, "max_partial_prefills": 3, "policy": "priority"}
    bench = bench_of(pages=60, chunk=64, running=4, **limits)
    for request_id, length in enumerate([100, 60, 40]):
        queue(bench, request_id, length, max_tokens=1, priority=request_id == 1)
    steps_of(bench, 2)
    state = bench.scheduler.state
    last, lease = state.requests[2], state.requests[2].lease
    assert lease is not None
    assert sorted(state.partial) == [0, 1, 2]
    lease.pages += state.kv.pool.take(state.kv.pool.num_free)
    last.scheduled -= 8
    last.computed -= 8
    state.requests[0].planned_at -= DUE_AFTER
    plan = bench.scheduler.scheduler.schedule()
    assert plan is not None
    assert last.preemptions == 1
    assert [(chunk.request_id, chunk.length) for chunk in plan.chunks] == [(0, 8), (1, 8), (2, 8)]


def test_no_request_is_preempted_to_lengthen_a_chunk() -> None:
    """The oldest request has its half of the step, which takes the last pages. It would take what the prompt that waits
    for memory leaves, but not from a stream."""
    bench = bench_of(chunk=32, running=8)
    queue(bench, 0, 400)
    queue(bench, 1, 4, max_tokens=50)
    steps_of(bench, 2)
    queue(bench, 2, 100)
    state = bench.scheduler.state
    lease = state.requests[1].lease
    assert lease is not None
    lease.pages += state.kv.pool.take(state.kv.pool.num_free - 4)
    plan = bench.scheduler.scheduler.schedule()
    assert plan is not None
    assert shape(plan) == [(1, 5, 1), (0, 60, 16)]
    assert not state.requests[1].preemptions


def test_duplicates_that_will_wait_take_nothing_from_the_first() -> None:
    """They are held back as soon as it is admitted; a share kept for them would be wasted."""
    bench = bench_of(chunk=64, running=8, max_partial_prefills=4)
    for request_id in range(4):
        queue(bench, request_id, 200, token=5)
    assert shapes_of(bench) == [[(0, 0, 64)]]


def test_half_computed_prompts_with_a_common_beginning_go_on_together() -> None:
    """What they have in common is behind them: only waiting prompts can be duplicates."""
    bench = bench_of(chunk=32, running=8)
    queue(bench, 0, 4, max_tokens=1, token=5)
    steps_of(bench, 2)
    for request_id in (1, 2):
        length = {1: 496, 2: 96}[request_id]
        bench.scheduler.add(Submit(request_id, (5,) * 4 + (request_id + 10,) * length, resolved(1)))
    assert shapes_of(bench, 2) == [[(1, 4, 16), (2, 4, 16)], [(1, 20, 16), (2, 20, 16)]]


def test_equal_prompts_are_computed_together_without_a_prefix_cache() -> None:
    world = World(limits_of(chunk=32, max_partial_prefills=2), num_pages=400, page_size=4, prefix_caching=False)
    bench = Bench.of(world)
    queue(bench, 0, 160, token=5)
    queue(bench, 1, 40, token=5)
    assert shapes_of(bench) == [[(0, 0, 16), (1, 0, 16)]]


def test_a_prompt_one_token_longer_than_a_page_waits_for_its_leader() -> None:
    """And takes nothing of the first one's share: the page is all it will ever compute."""
    bench = bench_of(page_size=4, chunk=64, running=8)
    queue(bench, 0, 200, token=5)
    queue(bench, 1, 5, token=5)
    assert shapes_of(bench, 2) == [[(0, 0, 64)], [(0, 64, 60), (1, 4, 1)]]


@pytest.mark.parametrize("lengths", [(4, 4), (5, 4)])
def test_prompts_alike_without_a_page_to_share_do_not_wait_for_each_other(lengths: tuple[int, int]) -> None:
    """The last token of a prompt is always computed: of five tokens a page of four can be shared, of four none."""
    bench = bench_of(page_size=4, chunk=64, running=8, max_partial_prefills=4)
    for request_id, length in enumerate(lengths):
        queue(bench, request_id, length, token=5)
    (chunks,) = shapes_of(bench)
    assert sorted(chunks) == [(0, 0, lengths[0]), (1, 0, lengths[1])]


def steps_to_first_tokens(bench: Bench, request_ids: Collection[int]) -> dict[int, int]:
    """Step until these requests have their first token. Returns after how many steps each has it."""
    steps: dict[int, int] = {}
    count = 0
    while len(steps) < len(request_ids):
        (plan,) = steps_of(bench)
        count += 1
        for chunk in plan.chunks:
            if chunk.samples and chunk.request_id in request_ids:
                steps.setdefault(chunk.request_id, count)
    return steps


def test_prompts_of_one_length_finish_in_order() -> None:
    """If they shared their steps, all would end when the last one does."""
    for partial in (1, 4):
        bench = bench_of(chunk=64, running=8, max_partial_prefills=partial)
        for request_id in range(4):
            queue(bench, request_id, 512, max_tokens=1)
        assert steps_to_first_tokens(bench, range(4)) == {0: 8, 1: 16, 2: 24, 3: 32}


def test_a_second_long_prompt_leaves_the_first_its_time_and_short_ones_theirs() -> None:
    """The first of two long prompts ends in the step in which it would without the second; a short prompt has its first
    token in the step in which it arrives, beside one long prompt or two."""
    for num_long in (1, 2):
        bench = bench_of(chunk=128, page_size=16, running=50, max_partial_prefills=4)
        for request_id in range(num_long):
            queue(bench, request_id, 3200, max_tokens=1)
        ends: dict[int, int] = {}
        for step in range(28):
            if step % 5 == 0:
                queue(bench, 10 + step, 60, max_tokens=1)
            (plan,) = steps_of(bench)
            ends |= {chunk.request_id: step for chunk in plan.chunks if chunk.samples}
        assert ends == {0: 27} | {10 + step: step for step in range(0, 28, 5)}


def test_a_prompt_with_a_quarter_of_the_work_shares() -> None:
    bench = bench_of(chunk=64, running=8)
    queue(bench, 0, 400)
    queue(bench, 1, 101)
    assert shapes_of(bench) == [[(0, 0, 64)]], "101 tokens are more than a quarter of 400"
    queue(bench, 2, 84)
    assert shapes_of(bench) == [[(0, 64, 32), (2, 0, 32)]], "84 tokens are a quarter of 336, which are left"


def test_a_short_prompt_is_cut_although_an_older_one_may_not_share() -> None:
    """Places go in order of arrival. One that waits until the first has ended keeps no place from shorter ones."""
    bench = bench_of(chunk=32, running=8, max_partial_prefills=2)
    queue(bench, 0, 1000)
    queue(bench, 1, 1000)
    queue(bench, 2, 24)
    assert shapes_of(bench, 2) == [[(0, 0, 16), (2, 0, 16)], [(0, 16, 24), (2, 16, 8)]]


def test_the_place_of_a_prompt_that_ends_is_for_the_next_in_order() -> None:
    """A short prompt that is cut and takes the place would be before an older one, which waits for a place to begin."""
    bench = bench_of(chunk=128, running=20, policy="priority")
    queue(bench, 0, 600)
    steps_of(bench)
    queue(bench, 1, 60, priority=1)
    queue(bench, 2, 100, priority=1)
    for request_id in range(3, 8):
        queue(bench, request_id, 15, priority=1)
    assert shapes_of(bench) == [[(1, 0, 60), *((request_id, 0, 15) for request_id in range(3, 7)), (2, 0, 8)]]


@pytest.mark.parametrize(
    "limits",
    [{"running": 1}, {"max_prefill_requests": 1}, {"max_prefill_tokens": 40}, {"pages": 250, "reserve": "full"}],
    ids=["no slot", "no second prompt a step", "not cut behind others", "no memory"],
)
def test_what_a_waiting_prompt_cannot_take_goes_to_the_first(limits: dict[str, object]) -> None:
    """Half of every step would stay empty: 990 tokens in 62 steps of 16 instead of 31 of 32."""
    bench = bench_of(**{"chunk": 32, "running": 8, "max_partial_prefills": 4, **limits})
    queue(bench, 0, 990, max_tokens=1)
    for request_id in range(1, 4):
        queue(bench, request_id, 200, max_tokens=1)
    assert steps_to_first_tokens(bench, [0]) == {0: 31}


def test_what_bound_a_step_of_several_prompts_is_reported() -> None:
    bench = bench_of(chunk=32, running=4)
    queue(bench, 0, 100)
    queue(bench, 1, 100)
    queue(bench, 2, 100)
    plans = steps_of(bench, 2)
    assert [plan.bound_by for plan in plans] == [Bound.CHUNKED_PREFILL_SIZE, Bound.CHUNKED_PREFILL_SIZE]


@examples(100)
@given(
    page_size=st.sampled_from([1, 4]),
    chunk_pages=st.integers(1, 24),
    partial=st.integers(2, 6),
    threshold_pages=st.sampled_from([0, 0, 1, 3]),
    prompts=st.sampled_from([0, 0, 1, 3]),
    dynamic=st.sampled_from([0, 0, 1, 50]),
    arrivals=st.lists(st.tuples(st.integers(1, 120), st.integers(0, 6)), min_size=1, max_size=12),
)
def test_every_prompt_ends_within_its_bound(
    page_size: int,
    chunk_pages: int,
    partial: int,
    threshold_pages: int,
    prompts: int,
    dynamic: int,
    arrivals: list[tuple[int, int]],
) -> None:
    """With any arrivals, a prompt is computed after a number of steps known when it arrives."""
    limits = SchedulerLimits(
        "mixed",
        chunk_pages * page_size,
        chunk_pages * page_size + 16,
        16,
        max_partial_prefills=partial,
        long_prefill_token_threshold=threshold_pages * page_size,
        max_prefill_requests=prompts,
        dynamic_chunking=dynamic,
        reserve="full",
    )
    num_pages = sum(-(-(length + 2) // page_size) for length, _ in arrivals)
    scheduler = Scheduler(limits, KVManager(num_pages=num_pages, page_size=page_size))
    deadlines: dict[int, int] = {}
    lengths: list[int] = []
    for request_id, (length, gap) in enumerate(arrivals):
        scheduler.add(Submit(request_id, (request_id,) * length, resolved(2)))
        lengths.append(length)
        deadlines[request_id] = scheduler.state.step + steps_to_prefill(limits, page_size, lengths)
        step_within(scheduler, deadlines, gap)
    while scheduler.has_work:
        step_within(scheduler, deadlines, 1)


def step_within(scheduler: Scheduler, deadlines: dict[int, int], count: int) -> None:
    state = scheduler.state
    for _ in range(count):
        plan = scheduler.schedule()
        if plan is None:
            return
        scheduler.commit(plan, BatchResult(plan.step, tuple((0,) for chunk in plan.chunks if chunk.samples)))
        late = [
            request.id
            for request in (*state.waiting, *state.partial.values())
            if state.step >= deadlines[request.id] and request.num_outputs == 0
        ]
        assert not late, f"prompts {late} are not computed at step {state.step}: {deadlines}"

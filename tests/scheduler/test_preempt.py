"""Preemption: which request gives pages back when none are free."""

from __future__ import annotations

import pytest

from sluice.engine.messages import Submit
from sluice.scheduler.preempt import lost_work, make_room
from sluice.scheduler.request import Status
from sluice.scheduler.reserve import (
    CLIPPED_OUTPUT,
    DECAY_STEPS,
    FLOOR_SHARE,
    PROTECT_AFTER,
    RISE_TOKENS,
    START_RATIO,
    RatioReservation,
)
from sluice.scheduler.state import SchedulerState
from sluice.testing import resolved
from sluice.types import Bound
from support import add, steps_of, until_preemption
from worlds import Bench, World, check_ends, enough_steps, limits_of


def tight(num_pages: int = 12, **rest: int) -> Bench:
    limits = limits_of(chunk=16, running=4, lookahead=rest.get("lookahead", 0))
    return Bench.of(World(limits, num_pages=num_pages, page_size=2, depth=rest.get("depth", 1), late=True))


def test_the_victim_loses_least_work_and_is_never_the_oldest() -> None:
    bench = tight()
    add(bench, 0, [0, 1], max_tokens=20)
    add(bench, 1, [1, 0, 1, 0, 1], max_tokens=8)
    add(bench, 2, [1, 1, 0], max_tokens=8)
    victims = until_preemption(bench)
    assert victims == [2]
    assert next(iter(bench.scheduler.state.waiting)).id == 2


def test_work_that_others_hold_is_not_lost() -> None:
    """A long request all of whose prompt is shared loses less than a short one that is alone."""
    bench = tight(num_pages=30)
    add(bench, 0, [1] * 9, max_tokens=12)
    bench.engine.step()
    add(bench, 1, [0, 1, 0], max_tokens=12)
    bench.engine.step()
    add(bench, 2, [1] * 9, max_tokens=12)
    bench.engine.step()
    state = bench.scheduler.state
    assert state.requests[2].num_cached_tokens == 8
    assert lost_work(state, state.requests[2]) < lost_work(state, state.requests[1]) < 9


def test_a_preempted_request_comes_back_first_and_finishes_with_the_same_tokens() -> None:
    bench = tight()
    sent = {i: Submit(i, tuple([i % 2, 1, 0][: 2 + i % 2]), resolved(9, seed=i)) for i in range(4)}
    bench.link.put(*sent.values())
    victims = until_preemption(bench)
    add(bench, 9, [1], max_tokens=2)
    sent[9] = Submit(9, (1,), resolved(2))
    assert [request.id for request in bench.scheduler.state.waiting][:1] == victims[:1]
    bench.drain(enough_steps(sent))
    check_ends(bench, sent)


def test_a_victim_in_flight_drains_before_its_pages_are_used() -> None:
    bench = tight(depth=3, lookahead=2)
    sent = {i: Submit(i, (i % 2, 1, i // 2), resolved(9, seed=i)) for i in range(4)}
    bench.link.put(*sent.values())
    until_preemption(bench)
    preempted = [r for r in bench.scheduler.state.requests.values() if r.preemptions]
    assert {request.status for request in preempted} == {Status.DRAINING}
    bench.drain(enough_steps(sent))
    check_ends(bench, sent)


def test_no_more_are_preempted_than_needed() -> None:
    """Pages of a draining victim count as coming: the next step must not take a second one for the same want."""
    bench = tight(depth=2, lookahead=1)
    for request_id in range(4):
        add(bench, request_id, [request_id % 2, 1, request_id // 2], max_tokens=9)
    until_preemption(bench)
    bench.engine.step()
    assert sum(request.preemptions for request in bench.scheduler.state.requests.values()) == 1


def test_the_published_pages_of_a_victim_stay_in_the_cache() -> None:
    bench = tight()
    for request_id in range(3):
        add(bench, request_id, [request_id % 2, 1, request_id // 2], max_tokens=9)
    (victim,) = until_preemption(bench)
    request = bench.scheduler.state.requests[victim]
    assert bench.scheduler.state.kv.match(request.tokens, len(request.tokens) - 1, "") != []


def test_a_half_prefilled_oldest_request_takes_pages_from_younger_ones() -> None:
    """Or it would hold its pages for ever and no request could go on."""
    bench = Bench.of(World(limits_of(chunk=4, running=4), num_pages=8, page_size=2))
    sent = {0: Submit(0, (1,) * 12, resolved(4)), 1: Submit(1, (0, 1, 0), resolved(9))}
    bench.link.put(sent[1])
    bench.engine.step()
    bench.link.put(sent[0])
    bench.drain(enough_steps(sent))
    check_ends(bench, sent)


def test_a_request_preempted_often_enough_is_counted_with_all_it_may_use() -> None:
    """Or it could be sent back without end."""
    bench = tight()
    add(bench, 0, [1, 0, 1], max_tokens=9)
    bench.engine.step()
    request, rule = bench.scheduler.state.requests[0], RatioReservation(0.0)
    assert (rule.tokens(request), rule.tokens_at_admission(request)) == (4, 12)
    request.max_tokens = 5000
    assert rule.tokens_at_admission(request) == 4 + CLIPPED_OUTPUT
    request.preemptions = PROTECT_AFTER
    assert (rule.tokens(request), rule.tokens_at_admission(request)) == (5003, 5003)


def full_of_two(spare: int = 0, **rest: int) -> SchedulerState:
    """Requests 0 and 1 run and hold every page but `spare`."""
    bench = tight(num_pages=8, **rest)
    add(bench, 0, [0, 1, 1], max_tokens=4)
    add(bench, 1, [1, 0, 0], max_tokens=4)
    bench.engine.step()
    state = bench.scheduler.state
    lease = state.requests[0].lease
    assert lease is not None
    lease.extend(2 * (len(lease.pages) + state.kv.available - spare))
    assert (sorted(state.decoding), state.kv.available) == ([0, 1], spare)
    return state


def test_who_was_a_victim_often_enough_keeps_its_pages_unless_the_oldest_stands_still() -> None:
    """Two that take each other's pages in turn would never end; nor would the oldest if the last one kept them."""
    state = full_of_two()
    oldest, last = state.requests[0], state.requests[1]
    last.preemptions = PROTECT_AFTER
    make_room(state, [last])
    assert last.status is Status.DECODING
    make_room(state, [oldest, last])
    assert last.status is not Status.DECODING


def test_the_last_resort_is_not_asked_while_the_oldest_finds_a_page() -> None:
    state = full_of_two(spare=1)
    oldest, last = state.requests[0], state.requests[1]
    last.preemptions = PROTECT_AFTER
    make_room(state, [oldest, last])
    assert last.status is Status.DECODING


def test_a_page_on_its_way_back_is_a_page_the_oldest_finds() -> None:
    """One that drains will give its pages back; the last resort keeps its own until then."""
    bench = tight(num_pages=16, depth=2, lookahead=1)
    for request_id, prompt in enumerate(([0, 0, 1], [1, 0, 0], [0, 1, 1])):
        add(bench, request_id, prompt, max_tokens=4)
    for _ in range(2):
        bench.engine.step()
    state = bench.scheduler.state
    oldest, last, leaving = (state.requests[i] for i in range(3))
    assert leaving.in_flight
    state.preempt(leaving)
    assert oldest.lease is not None
    oldest.lease.extend(2 * (len(oldest.lease.pages) + state.kv.available))
    last.preemptions = PROTECT_AFTER
    make_room(state, [oldest, last, leaving])
    assert last.status is not Status.DRAINING


def test_want_of_memory_raises_the_share_that_is_reserved() -> None:
    """Or the same requests would be admitted and thrown out again."""
    state = full_of_two()
    rule = state.reservation
    assert isinstance(rule, RatioReservation)
    make_room(state, [])
    assert rule.ratio == 0.0
    make_room(state, [state.requests[0]])
    survivor = state.requests[0]
    assert rule.ratio == min(1.0, (survivor.num_outputs + RISE_TOKENS) / (survivor.max_tokens + 1))


def test_only_steps_with_decodes_let_the_share_sink() -> None:
    bench = Bench.of(World(limits_of(chunk=4, conservativeness=1.0), num_pages=40, page_size=2))
    add(bench, 0, [1] * 8, max_tokens=4)
    rule = bench.scheduler.state.reservation
    assert isinstance(rule, RatioReservation)
    shares = []
    for _ in range(4):
        bench.engine.step()
        shares.append(rule.ratio)
    assert shares[0] == shares[1] == START_RATIO, "two chunks of the prompt"
    assert shares[1] > shares[2] > shares[3]


def test_a_step_in_which_a_decode_found_no_page_says_so() -> None:
    bench = tight()
    for request_id in range(3):
        add(bench, request_id, [request_id % 2, 1, request_id // 2], max_tokens=9)
    bench.engine.step()
    bounds = []
    while not any(request.preemptions for request in bench.scheduler.state.requests.values()):
        (plan,) = steps_of(bench)
        bounds.append(plan.bound_by)
    assert bounds[-1] is Bound.KV_PAGES
    assert set(bounds[:-1]) <= {Bound.NOTHING}


def test_who_needs_no_page_goes_on_while_others_wait_for_one() -> None:
    """One that drains will give its pages back: none is preempted, and only those that need a page stand still."""
    bench = Bench.of(World(limits_of(chunk=16, lookahead=1), num_pages=12, page_size=2, depth=2))
    for request_id, prompt in enumerate(([0, 0, 1, 1], [1, 0, 0], [0, 1, 1])):
        bench.scheduler.add(Submit(request_id, tuple(prompt), resolved(4)))
    assert bench.scheduler.schedule() is not None
    state = bench.scheduler.state
    state.preempt(state.requests[2])
    held = state.kv.pool.take(state.kv.pool.num_free)
    plan = bench.scheduler.scheduler.schedule()
    assert plan is not None
    assert ([chunk.request_id for chunk in plan.chunks], plan.bound_by) == ([1], Bound.KV_PAGES)
    assert not any(request.preemptions for request in state.requests.values())
    state.kv.pool.give(held)


def test_the_share_sinks_evenly_to_its_floor() -> None:
    rule = RatioReservation(1.0)
    floor = FLOOR_SHARE * START_RATIO
    shares = [rule.ratio]
    for _ in range(DECAY_STEPS + 5):
        rule.decoded()
        shares.append(rule.ratio)
    assert shares[0] == START_RATIO
    assert shares[DECAY_STEPS // 2] == pytest.approx((START_RATIO + floor) / 2)
    assert shares[DECAY_STEPS - 1] > floor
    assert shares[DECAY_STEPS + 1] == shares[-1] == floor


def test_the_share_after_a_preemption_is_what_survivors_used_and_a_little_more() -> None:
    """Never less than before, and never more than all."""
    bench = tight(num_pages=300)
    for request_id in range(2):
        add(bench, request_id, [request_id, 1, 1], max_tokens=99)
    for _ in range(8):
        bench.engine.step()
    survivors = list(bench.scheduler.state.requests.values())
    used = [request.num_outputs for request in survivors]
    assert min(used) > 5
    rule = RatioReservation(0.0)
    rule.preempted(survivors)
    expected = (sum(used) + 2 * RISE_TOKENS) / (2 * 99 + 1)
    assert rule.ratio == pytest.approx(expected)
    rule.preempted(survivors[:1])
    assert rule.ratio == pytest.approx(max(expected, (used[0] + RISE_TOKENS) / 100))
    high = RatioReservation(1.0)
    high.preempted(survivors)
    assert high.ratio == START_RATIO
    for request in survivors:
        request.max_tokens = 3
    high.preempted(survivors)
    assert high.ratio == 1.0

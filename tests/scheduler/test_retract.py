"""Retraction: who gives pages back when there are none."""

from __future__ import annotations

from sluice.engine.messages import Submit
from sluice.scheduler.request import Place
from sluice.scheduler.reserve import CLIPPED_OUTPUT, PROTECT_AFTER, RatioReservation
from sluice.scheduler.retract import lost_work
from sluice.testing import resolved
from support import add, until_retraction
from worlds import Bench, World, check_ends, enough_steps, limits_of


def tight(num_pages: int = 12, **rest: int) -> Bench:
    limits = limits_of(chunk=16, running=4, lookahead=rest.get("lookahead", 0))
    return Bench.of(World(limits, num_pages=num_pages, page_size=2, depth=rest.get("depth", 1), late=True))


def test_the_victim_loses_least_work_and_is_never_the_oldest() -> None:
    bench = tight()
    add(bench, 0, [0, 1], max_tokens=20)
    add(bench, 1, [1, 0, 1, 0, 1], max_tokens=8)
    add(bench, 2, [1, 1, 0], max_tokens=8)
    victims = until_retraction(bench)
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


def test_a_retracted_request_comes_back_first_and_finishes_with_the_same_tokens() -> None:
    bench = tight()
    sent = {i: Submit(i, tuple([i % 2, 1, 0][: 2 + i % 2]), resolved(9, seed=i)) for i in range(4)}
    bench.link.put(*sent.values())
    victims = until_retraction(bench)
    add(bench, 9, [1], max_tokens=2)
    sent[9] = Submit(9, (1,), resolved(2))
    assert [request.id for request in bench.scheduler.state.waiting][:1] == victims[:1]
    bench.drain(enough_steps(sent))
    check_ends(bench, sent)


def test_a_victim_in_flight_drains_before_its_pages_are_used() -> None:
    bench = tight(depth=3, lookahead=2)
    sent = {i: Submit(i, (i % 2, 1, i // 2), resolved(9, seed=i)) for i in range(4)}
    bench.link.put(*sent.values())
    until_retraction(bench)
    retracted = [r for r in bench.scheduler.state.requests.values() if r.retractions]
    assert {request.place for request in retracted} == {Place.DRAINING}
    bench.drain(enough_steps(sent))
    check_ends(bench, sent)


def test_no_more_are_retracted_than_needed() -> None:
    """Pages of a draining victim count as coming: the next step must not take a second one for the same want."""
    bench = tight(depth=2, lookahead=1)
    for request_id in range(4):
        add(bench, request_id, [request_id % 2, 1, request_id // 2], max_tokens=9)
    until_retraction(bench)
    bench.engine.step()
    assert sum(request.retractions for request in bench.scheduler.state.requests.values()) == 1


def test_the_published_pages_of_a_victim_stay_in_the_cache() -> None:
    bench = tight()
    for request_id in range(3):
        add(bench, request_id, [request_id % 2, 1, request_id // 2], max_tokens=9)
    (victim,) = until_retraction(bench)
    request = bench.scheduler.state.requests[victim]
    assert bench.scheduler.state.kv.match(request.tokens, len(request.tokens) - 1, "") != []


def test_a_half_prefilled_oldest_request_takes_pages_from_younger_ones() -> None:
    """Or it would hold what it has for ever and nobody could go on."""
    bench = Bench.of(World(limits_of(chunk=4, running=4), num_pages=8, page_size=2))
    sent = {0: Submit(0, (1,) * 12, resolved(4)), 1: Submit(1, (0, 1, 0), resolved(9))}
    bench.link.put(sent[1])
    bench.engine.step()
    bench.link.put(sent[0])
    bench.drain(enough_steps(sent))
    check_ends(bench, sent)


def test_who_was_retracted_often_enough_is_counted_with_all_it_may_use() -> None:
    """Or it could be sent back without end."""
    bench = tight()
    add(bench, 0, [1, 0, 1], max_tokens=9)
    bench.engine.step()
    request, rule = bench.scheduler.state.requests[0], RatioReservation(0.0)
    assert (rule.tokens(request), rule.tokens_at_admission(request)) == (4, 12)
    request.max_tokens = 5000
    assert rule.tokens_at_admission(request) == 4 + CLIPPED_OUTPUT
    request.retractions = PROTECT_AFTER
    assert (rule.tokens(request), rule.tokens_at_admission(request)) == (5003, 5003)

"""What a step holds, by example, over the shadow runner."""

from __future__ import annotations

from sluice.engine.messages import Submit
from sluice.testing import resolved
from support import shape, steps_of
from worlds import Bench, World, check_ends, limits_of


def add(bench: Bench, request_id: int, length: int, max_tokens: int = 8, *, token: int | None = None) -> None:
    bench.scheduler.add(
        Submit(request_id, (request_id % 2 if token is None else token,) * length, resolved(max_tokens))
    )


def decoding(bench: Bench, count: int, max_tokens: int) -> None:
    for request_id in range(count):
        add(bench, request_id, 2, max_tokens)
    steps_of(bench, 1 if bench.world.limits.schedule == "mixed" else 2)
    assert len(bench.scheduler.state.decoding) == count


def test_mixed_decodes_ride_in_every_step_of_a_long_prompt() -> None:
    bench = Bench.of(World(limits_of(chunk=8, running=5), num_pages=400, page_size=2))
    decoding(bench, 4, max_tokens=100)
    add(bench, 9, 40 * 8, token=5)
    for index, plan in enumerate(steps_of(bench, 40)):
        assert [chunk.length for chunk in plan.chunks] == [1, 1, 1, 1, 8]
        assert plan.chunks[-1].start == 8 * index
        assert plan.chunks[-1].samples == (index == 39)


def test_decodes_come_off_the_batch_budget_and_not_off_the_chunk() -> None:
    bench = Bench.of(World(limits_of(chunk=8, batch=10, running=5), num_pages=400, page_size=2))
    decoding(bench, 4, max_tokens=100)
    add(bench, 9, 40)
    (plan,) = steps_of(bench, 1)
    assert [chunk.length for chunk in plan.chunks] == [1, 1, 1, 1, 6]


def test_a_chunk_is_cut_down_to_whole_pages_and_one_cut_to_nothing_waits() -> None:
    bench = Bench.of(World(limits_of(chunk=10, batch=14, running=4), num_pages=400, page_size=4))
    add(bench, 0, 9)
    add(bench, 1, 9)
    first, second = steps_of(bench, 2)
    assert shape(first) == [(0, 0, 9)], "one token is left: less than a page"
    assert shape(second) == [(0, 9, 1), (1, 0, 9)]
    add(bench, 2, 30, token=0)
    (third,) = steps_of(bench, 1)
    assert shape(third)[-1] == (2, 8, 8), "two pages from the cache, then 10 tokens cut to two pages"


def test_a_half_read_prompt_waits_while_decodes_leave_less_than_a_page() -> None:
    """It started in a step without decodes: theirs were in flight."""
    bench = Bench.of(World(limits_of(chunk=8, batch=5, running=4), num_pages=40, page_size=4, depth=2))
    runner, scheduler = bench.engine.runner, bench.scheduler
    decoding(bench, 2, max_tokens=20)
    add(bench, 2, 20)
    decodes = scheduler.schedule()
    prompt = scheduler.schedule()
    assert decodes is not None
    assert prompt is not None
    assert shape(prompt) == [(2, 0, 4)]
    for plan in (decodes, prompt):
        scheduler.commit(plan, runner.launch(plan).wait())
    (after,) = steps_of(bench, 1)
    assert [(chunk.request_id, chunk.length) for chunk in after.chunks] == [(0, 1), (1, 1)]


def test_without_chunking_a_prompt_goes_whole_or_waits() -> None:
    bench = Bench.of(World(limits_of(chunk=0, batch=20, running=4), num_pages=400, page_size=4))
    for request_id in range(3):
        add(bench, request_id, 9, token=request_id)
    first, second = steps_of(bench, 2)
    assert shape(first) == [(0, 0, 9), (1, 0, 9)]
    assert shape(second) == [(0, 9, 1), (1, 9, 1), (2, 0, 9)]


def test_first_come_first_served_never_passes_over_the_head() -> None:
    """A small request behind one that does not fit waits, so that the large one is not starved."""
    bench = Bench.of(World(limits_of(chunk=8, running=4), num_pages=8, page_size=2))
    add(bench, 0, 6, max_tokens=6)
    steps_of(bench, 1)
    add(bench, 1, 12, max_tokens=2)
    add(bench, 2, 1, max_tokens=1)
    (plan,) = steps_of(bench, 1)
    assert shape(plan) == [(0, 6, 1)]


def test_no_more_requests_than_slots() -> None:
    bench = Bench.of(World(limits_of(chunk=8, running=2), num_pages=40, page_size=2))
    for request_id in range(3):
        add(bench, request_id, 2, max_tokens=3)
    plans = steps_of(bench, 4)
    assert [len(plan.chunks) for plan in plans] == [2, 2, 2, 1]
    assert plans[3].chunks[0].request_id == 2


def test_a_finished_chunk_is_shared_at_once_and_survives_an_abort() -> None:
    bench = Bench.of(World(limits_of(chunk=8, running=2), num_pages=40, page_size=4))
    add(bench, 0, 30, token=1)
    steps_of(bench, 2)
    bench.scheduler.abort(0)
    add(bench, 1, 30, token=1)
    (plan,) = steps_of(bench, 1)
    assert shape(plan) == [(1, 16, 8)]


def test_lookahead_plans_a_decode_before_its_input_is_known() -> None:
    """The input is then named by the slot alone, and what comes out is still the oracle's."""
    bench = Bench.of(World(limits_of(chunk=8, running=2, lookahead=1), num_pages=40, page_size=4, depth=2, late=True))
    sent = {0: Submit(0, (1, 0, 1), resolved(5))}
    bench.link.put(*sent.values())
    bench.engine.step()
    bench.engine.step()
    decode = bench.scheduler.in_flight[-1][0].chunks[0]
    assert (decode.start, decode.length, decode.token_ids) == (3, 1, ())
    bench.drain(20)
    check_ends(bench, sent)


def test_lookahead_plans_nothing_beyond_max_tokens() -> None:
    bench = Bench.of(World(limits_of(chunk=8, running=2, lookahead=2), num_pages=40, page_size=4, depth=3, late=True))
    add(bench, 0, 3, max_tokens=2)
    plans = [bench.scheduler.schedule() for _ in range(3)]
    assert [plan is None for plan in plans] == [False, False, True]


def test_a_request_that_stops_early_discards_what_ran_ahead() -> None:
    """The token after a stop token was computed for nothing: it is never sent, and its row keeps the pages."""
    world = World(limits_of(chunk=8, running=2, lookahead=2), num_pages=40, page_size=1, depth=3, late=True)
    bench = Bench.of(world)
    sent = {0: Submit(0, (1, 0, 1), resolved(30, stop_token_ids=[0, 1]))}
    bench.link.put(*sent.values())
    while not bench.link.outputs:
        bench.engine.step()
    assert 0 in bench.scheduler.state.draining
    bench.drain(20)
    assert len(bench.link.tokens(0)) == 1
    check_ends(bench, sent)


def test_a_cap_on_the_share_of_a_long_prompt_leaves_room_for_short_ones_behind_it() -> None:
    """With one prompt half computed at a time, others are admitted into what the cap leaves, whole."""
    bench = Bench.of(
        World(limits_of(chunk=32, long_prefill_token_threshold=8, max_partial_prefills=1), num_pages=400, page_size=4)
    )
    for request_id, length in enumerate([100, 6, 100, 5]):
        add(bench, request_id, length, token=request_id)
    assert [shape(plan) for plan in steps_of(bench, 2)] == [[(0, 0, 8), (1, 0, 6)], [(1, 6, 1), (0, 8, 8)]]

"""Calls of many requests take turns with others: a short call does not wait for all of a large one."""

from __future__ import annotations

from support import queue, steps_of
from worlds import Bench, World, limits_of

INPUTS = 60
LARGE = range(INPUTS)
"""Ids of the requests of a large call: the inputs of an embedding."""


def bench_of(**limits: object) -> Bench:
    options = {"chunk": 32, "batch": 64, "running": 8, "max_partial_prefills": 4}
    return Bench.of(World(limits_of(**{**options, **limits}), num_pages=4000, page_size=4))


def queue_large(bench: Bench, length: int = 32) -> None:
    for request_id in LARGE:
        queue(bench, request_id, length, embeds=True, call=0)


def order_of(bench: Bench, steps: int) -> list[int]:
    """The ids of the requests in the order in which their prompts were begun."""
    plans = steps_of(bench, steps)
    return [chunk.request_id for plan in plans for chunk in plan.chunks if chunk.start == 0]


def test_a_short_call_goes_before_the_rest_of_a_large_one() -> None:
    """It waited for 60 embeddings."""
    bench = bench_of()
    queue_large(bench)
    assert order_of(bench, 2) == [0, 1]
    queue(bench, 1000, 32, max_tokens=1)
    assert order_of(bench, 2) == [1000, 2]


def test_a_prompt_of_a_call_that_waits_for_slots_gets_the_next_one() -> None:
    """Eight samples run; a chat waited for all 52 others."""
    bench = bench_of()
    for request_id in LARGE:
        queue(bench, request_id, 8, max_tokens=4, token=5, call=0)
    begun = order_of(bench, 3)
    queue(bench, 1000, 8, max_tokens=4)
    begun += order_of(bench, 8)
    assert begun.index(1000) <= 8


def test_two_large_calls_are_served_alike() -> None:
    bench = bench_of()
    queue_large(bench)
    for request_id in LARGE:
        queue(bench, 100 + request_id, 16, embeds=True, call=100)
    of_first = [request_id < 100 for request_id in order_of(bench, 30)]
    tokens = 32 * sum(of_first), 16 * (len(of_first) - sum(of_first))
    assert abs(tokens[0] - tokens[1]) <= 32


def test_a_flood_of_short_calls_does_not_starve_a_large_one() -> None:
    """More and more calls wait that have had nothing yet; it has its turn among them."""
    bench = bench_of()
    queue_large(bench)
    begun = []
    for step in range(60):
        for number in range(2):
            queue(bench, 1000 + 2 * step + number, 32, max_tokens=1)
        begun += order_of(bench, 1)
    assert sum(request_id in LARGE for request_id in begun) >= 3


def test_calls_of_one_request_go_in_order_of_arrival() -> None:
    bench = bench_of()
    for request_id in range(40):
        queue(bench, request_id, 40, max_tokens=1)
    begun = order_of(bench, 60)
    assert begun == sorted(begun)


def test_a_call_that_is_given_up_does_not_delay_others() -> None:
    """Its later requests had late turns; none of them was served."""
    bench = bench_of()
    queue_large(bench)
    steps_of(bench, 1)
    queue(bench, 1000, 32, max_tokens=1)
    for request_id in LARGE:
        bench.scheduler.abort(request_id)
    queue(bench, 1001, 32, max_tokens=1)
    assert order_of(bench, 3) == [1000, 1001]

"""What SGLang's scheduler decides about a request, one test for each rule."""

from __future__ import annotations

from sluice.types import Bound
from support import queue, shapes_of, steps_of
from worlds import Bench, World, limits_of


def bench_of(pages: int = 400, page_size: int = 4, **limits: object) -> Bench:
    return Bench.of(World(limits_of(**limits), num_pages=pages, page_size=page_size))


def test_finished_requests_leave_and_waiting_ones_join_every_step() -> None:
    bench = bench_of(chunk=16, running=2)
    queue(bench, 0, 4, max_tokens=2)
    queue(bench, 1, 4, max_tokens=3)
    queue(bench, 2, 4, max_tokens=2)
    assert shapes_of(bench, 4) == [
        [(0, 0, 4), (1, 0, 4)],
        [(0, 4, 1), (1, 4, 1)],
        [(1, 5, 1), (2, 0, 4)],
        [(2, 4, 1)],
    ]


def test_a_step_has_decodes_then_the_started_prompt_then_new_ones() -> None:
    bench = bench_of(chunk=12, running=4)
    queue(bench, 0, 4)
    steps_of(bench)
    queue(bench, 1, 20)
    steps_of(bench)
    queue(bench, 2, 4)
    assert shapes_of(bench) == [[(0, 5, 1), (1, 12, 8), (2, 0, 4)]]


def test_a_chunk_gets_only_the_pages_it_adds() -> None:
    bench = bench_of(chunk=8, running=4)
    queue(bench, 0, 22)
    counts = [len(plan.chunks[0].new_pages) for plan in steps_of(bench, 6)]
    assert counts == [2, 2, 2, 0, 0, 1], "22 tokens fill half a page; the next page comes with position 24"


def test_a_matched_prefix_is_locked_before_pages_are_taken() -> None:
    """The only pages left to evict are the matched ones: admission must see that, and not evict what it found."""
    bench = bench_of(chunk=64, running=3, pages=8, page_size=1)
    queue(bench, 0, 4, max_tokens=1, token=5)
    steps_of(bench)
    queue(bench, 1, 3, max_tokens=1)
    plan = bench.scheduler.schedule()
    assert plan is not None
    assert bench.scheduler.state.kv.available == 5
    queue(bench, 2, 6, max_tokens=1, token=5)
    assert bench.scheduler.schedule() is None
    bench.scheduler.commit(plan, bench.engine.runner.launch(plan).wait())
    (plan,) = steps_of(bench)
    assert plan.chunks[0].start == 4
    assert plan.bound_by is Bound.NOTHING

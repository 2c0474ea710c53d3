"""What SGLang's scheduler decides about a request, one test for each rule."""

from __future__ import annotations

from sluice.engine.messages import Submit
from sluice.testing import resolved
from sluice.types import Bound
from support import queue, shapes_of, steps_of
from worlds import Bench, World, check_ends, limits_of


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


def test_with_overlap_a_decode_is_planned_before_its_input_is_known() -> None:
    """Synchronous: the input of a decode is known. Overlap: it is what the slot samples in the step before."""
    sync = bench_of(chunk=8, running=4)
    queue(sync, 0, 6)
    steps_of(sync)
    known = steps_of(sync)[0].chunks[0]
    world = World(limits_of(chunk=8, running=4, lookahead=1), num_pages=40, page_size=4, depth=2, late=True)
    overlap = Bench.of(world)
    queue(overlap, 0, 6)
    overlap.scheduler.schedule()
    ahead = overlap.scheduler.schedule()
    assert ahead is not None
    assert (known.start, known.length, len(known.token_ids)) == (6, 1, 1)
    assert (ahead.chunks[0].start, ahead.chunks[0].length, ahead.chunks[0].token_ids) == (6, 1, ())


def test_overlap_gives_the_same_tokens() -> None:
    world = World(limits_of(chunk=8, running=4, lookahead=1), num_pages=40, page_size=4, depth=2, late=True)
    bench = Bench.of(world)
    sent = {i: Submit(i, (1, i % 2, 0) * (i + 1), resolved(9, seed=i)) for i in range(4)}
    bench.link.put(*sent.values())
    bench.drain(200)
    check_ends(bench, sent)


def test_a_cached_prefix_in_use_is_not_evicted() -> None:
    bench = bench_of(chunk=64, running=2, pages=8)
    queue(bench, 0, 13, max_tokens=1, token=5)
    steps_of(bench)
    queue(bench, 1, 10, max_tokens=3, token=5)
    (plan,) = steps_of(bench)
    assert plan.chunks[0].start == 8
    held = set(bench.scheduler.state.requests[1].lease.pages)
    queue(bench, 2, 17, max_tokens=2)
    steps_of(bench)
    assert held <= set(bench.scheduler.state.requests[1].lease.pages), "a page in use was evicted for a newcomer"


def test_lpm_admits_the_longest_match_first() -> None:
    bench = bench_of(chunk=64, running=1, policy="lpm")
    queue(bench, 0, 13, max_tokens=1, token=5)
    steps_of(bench)
    queue(bench, 1, 13, max_tokens=1)
    queue(bench, 2, 13, max_tokens=1, token=5)
    assert shapes_of(bench, 2) == [[(2, 12, 1)], [(1, 0, 13)]]


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

"""Where records of recurrent states are made, and what goes on from them."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from sluice.engine.messages import Abort, Submit
from sluice.testing import Faults, FaultyRunner, resolved
from sluice.types import BatchPlan, BatchResult, FinishReason, SchedulerLimits, StateLimits
from support import steps_of
from worlds import Bench, World, check_ends, limits_of

PAGE, BLOCK = 4, 8


def bench_of(
    *,
    num_records: int = 20,
    spacing: int = 0,
    num_pages: int = 64,
    faults: Faults | None = None,
    depth: int = 1,
    **rest: object,
) -> Bench:
    limits: SchedulerLimits = limits_of(
        **{"chunk": 16, "running": 4, **rest}, states=StateLimits(BLOCK, num_records, spacing)
    )
    world = World(limits, num_pages=num_pages, page_size=PAGE, depth=depth)
    return Bench.of(world, FaultyRunner(world.shadow(), faults or Faults()))


def ask(bench: Bench, request_id: int, prompt: Sequence[int], max_tokens: int = 4, **rest: object) -> Submit:
    submit = Submit(request_id, tuple(prompt), resolved(max_tokens), **rest)
    bench.scheduler.add(submit)
    return submit


def made(plans: Sequence[BatchPlan]) -> list[int]:
    """The positions of all records that plans make."""
    return [position for plan in plans for chunk in plan.chunks for position, _ in chunk.checkpoints]


def test_a_prompt_has_a_record_before_its_last_token() -> None:
    bench = bench_of()
    ask(bench, 0, range(33))
    assert made(steps_of(bench, 3)) == [32]
    bench = bench_of()
    ask(bench, 0, range(32))
    assert made(steps_of(bench, 3)) == [24]


def test_the_same_prompt_goes_on_from_it() -> None:
    bench = bench_of()
    submits = {0: ask(bench, 0, range(33))}
    bench.drain(20)
    submits[1] = ask(bench, 1, range(33))
    plan = steps_of(bench)[0]
    assert (plan.new_slots[0].cached, plan.chunks[0].start) == (32, 32)
    bench.drain(20)
    assert bench.link.end(1).num_cached_tokens == 32
    check_ends(bench, submits)


def test_the_next_turn_goes_on_from_the_end_of_the_one_before() -> None:
    bench = bench_of()
    first = ask(bench, 0, range(20), max_tokens=31)
    bench.drain(60)
    turn = (*first.prompt, *bench.link.tokens(0), 1, 0, 1)
    submits = {0: first, 1: ask(bench, 1, turn)}
    assert steps_of(bench)[0].new_slots[0].cached == 48, "50 tokens were computed"
    bench.drain(20)
    check_ends(bench, submits)


def test_prompts_part_once_in_vain() -> None:
    """The first that parts from another computes what they share, and makes a record there for the third."""
    bench = bench_of()
    shared = range(27)
    ask(bench, 0, (*shared, *range(100, 130)))
    bench.drain(20)
    ask(bench, 1, (*shared, *range(200, 230)))
    plans = steps_of(bench, 4)
    assert plans[0].new_slots[0].cached == 0
    assert made(plans) == [24, 56]
    bench.drain(20)
    ask(bench, 2, (*shared, *range(300, 330)))
    assert steps_of(bench)[0].new_slots[0].cached == 24
    bench.drain(20)


def test_long_contexts_have_records_at_a_distance() -> None:
    bench = bench_of(spacing=12)
    ask(bench, 0, range(60), max_tokens=30)
    assert made(steps_of(bench, 60)) == [16, 32, 48, 56, 64, 80]


def test_samples_of_one_prompt_compute_it_once() -> None:
    bench = bench_of()
    submits = {each: ask(bench, each, range(41), sample_index=each) for each in range(3)}
    plans = steps_of(bench, 60)
    computed = sum(chunk.length for plan in plans for chunk in plan.chunks if chunk.start < 41)
    assert computed == 41 + 2, "the others compute the last token"
    assert [new.cached for plan in plans for new in plan.new_slots] == [0, 40, 40]
    check_ends(bench, submits)


def test_a_preempted_request_goes_on_where_its_state_was() -> None:
    bench = bench_of(num_pages=16, running=2, conservativeness=0.0)
    submits = {each: ask(bench, each, range(100 * each, 100 * each + 9), max_tokens=40) for each in range(2)}
    opened = [new for plan in steps_of(bench, 200) for new in plan.new_slots]
    again = [new.cached for new in opened[2:]]
    assert again, "none was preempted"
    assert min(again) > 0
    check_ends(bench, submits)


def test_a_slot_is_saved_though_nothing_else_is_to_be_done() -> None:
    bench = bench_of()
    ask(bench, 0, range(20), max_tokens=10)
    plans = steps_of(bench, 60)
    assert [bool(plan.saved) for plan in plans].index(True) == len(plans) - 1
    assert not plans[-1].chunks
    assert not bench.scheduler.has_work


def test_an_aborted_request_is_saved_as_far_as_it_was_computed() -> None:
    bench = bench_of()
    ask(bench, 0, range(60))
    steps_of(bench, 2)
    bench.scheduler.abort(0)
    assert len(steps_of(bench)[0].saved) == 1
    ask(bench, 1, range(60))
    assert steps_of(bench)[0].new_slots[0].cached == 32


def test_the_state_of_a_failed_row_is_not_saved() -> None:
    """It was aborted while a step was in flight that fails, and may have moved the state of some layers."""
    for faults in (Faults(wait_raises=frozenset({17})), Faults(row_fails={17: 0})):
        bench = bench_of(faults=faults, depth=2, lookahead=1, chunk=16)
        bench.link.put(Submit(0, tuple(range(18)), resolved(30)))
        while len(bench.engine.in_flight) < 2 or bench.engine.in_flight[-1].plan.step < 17:
            bench.engine.begin()
            if len(bench.engine.in_flight) == 2 and bench.engine.in_flight[-1].plan.step < 17:
                bench.engine.finish()
        bench.link.put(Abort(0, FinishReason.ABORT))
        bench.drain(20)
        planner = bench.scheduler.state.states
        assert planner is not None
        records = bench.scheduler.state.kv.records
        assert records is not None
        assert records.num_held == 1, "that of the prompt alone"


@pytest.mark.parametrize("failed_step", [16, 15], ids=["made by it", "made behind it"])
@pytest.mark.parametrize("is_row", [False, True], ids=["step", "row"])
def test_what_a_failed_row_leaves_is_no_record(failed_step: int, *, is_row: bool) -> None:
    """The request was aborted while two steps were in flight. The first of them fails, or the second; the second moves
    the anchor to 32, and makes a record there."""
    faults = Faults(row_fails={failed_step: 0}) if is_row else Faults(wait_raises=frozenset({failed_step}))
    bench = bench_of(faults=faults, depth=2, lookahead=1, spacing=8)
    bench.link.put(Submit(0, tuple(range(18)), resolved(30)))
    while 32 not in made([each.plan for each in bench.engine.in_flight][1:]):
        if len(bench.engine.in_flight) == 2:
            bench.engine.finish()
        bench.engine.begin()
    assert [each.plan.step for each in bench.engine.in_flight] == [15, 16]
    bench.link.put(Abort(0, FinishReason.ABORT))
    bench.drain(20)
    assert positions(bench) == [8, 16, 24]


def test_a_request_goes_on_from_no_record_of_a_failed_step() -> None:
    """A request ends with a stop token. The step behind, which was in flight, makes a record and fails."""
    bench = bench_of(lookahead=1, spacing=8)
    scheduler = bench.scheduler
    scheduler.add(Submit(0, tuple(range(18)), resolved(30, stop_token_ids=(99,))))
    plans: list[BatchPlan] = []
    while 32 not in made(plans[1:]):
        if len(plans) == 2:
            scheduler.commit(plans[0], given(plans.pop(0), 5))
        plan = scheduler.schedule()
        assert plan is not None
        plans.append(plan)
    (output,) = scheduler.commit(plans[0], given(plans[0], 99))
    assert output.finish_reason is FinishReason.STOP
    scheduler.fail(plans[1], "an outage")
    ask(bench, 1, (*range(18), *([5] * 20)))
    plan = scheduler.schedule()
    assert plan is not None
    assert plan.new_slots[0].cached == 24


def given(plan: BatchPlan, token: int) -> BatchResult:
    """A result in which every chunk that samples brings the same token."""
    return BatchResult(plan.step, tuple((token,) for chunk in plan.chunks if chunk.samples))


def positions(bench: Bench) -> list[int]:
    """The positions of the records of nodes."""
    records, tree = bench.scheduler.state.kv.records, bench.scheduler.state.kv.tree
    assert records is not None
    return sorted(records.position_of(node) for node in tree.nodes() if node.record >= 0)


def test_a_step_that_fails_makes_no_record() -> None:
    bench = bench_of(faults=Faults(wait_raises=frozenset({2})))
    bench.link.put(Submit(0, tuple(range(33)), resolved(4)))
    bench.drain(20)
    assert bench.link.end(0).finish_reason is FinishReason.ERROR
    records = bench.scheduler.state.kv.records
    assert records is not None
    assert records.num_free == 20


def test_flushed_pages_free_their_records() -> None:
    bench = bench_of()
    ask(bench, 0, range(33))
    bench.drain(20)
    records = bench.scheduler.state.kv.records
    assert records is not None
    assert records.num_held > 0
    bench.scheduler.flush_cache()
    assert records.num_free == 20

"""What an engine reports of its steps while somebody watches."""

from __future__ import annotations

import itertools

from sluice.engine.messages import Abort, Submit, WatchSteps
from sluice.engine.step_watch import MOST_STEPS, REPORT_SECONDS, StepsSeen, StepWatch
from sluice.engine.trace import StepTimes
from sluice.testing import Faults, FaultyRunner, resolved
from sluice.types import BatchPlan, BatchResult, Bound, Chunk, ChunkSlice, Occupancy, PageCopy, Tier
from worlds import Bench, World, limits_of

EMPTY = Occupancy(0, 0, 0, 0, 0)


def watched(world: World, faults: Faults | None = None) -> tuple[Bench, list[StepsSeen]]:
    bench = Bench.of(world, None if faults is None else FaultyRunner(world.shadow(), faults))
    seen: list[StepsSeen] = []
    bench.engine.watch = StepWatch(seen.append)
    return bench, seen


def finish(bench: Bench) -> None:
    bench.engine.step()
    while not bench.engine.is_idle:
        bench.engine.step()
    bench.engine.step()  # it would wait here


def test_every_chunk_and_token_is_reported_once() -> None:
    """A page that adds them up must arrive at what its requests were given."""
    bench, seen = watched(World(limits_of(chunk=8), num_pages=64, page_size=2))
    bench.link.put(WatchSteps(True), Submit(1, (1,) * 20, resolved(5)), Submit(2, (2, 0), resolved(9)))
    finish(bench)
    steps = [step for report in seen for step in report.steps]
    assert [step.step for step in steps] == list(range(len(steps)))
    read = [chunk for step in steps for chunk in step.chunks]
    assert [(each.start, each.length, each.samples) for each in read if each.request_id == 1] == [
        (0, 8, False),
        (8, 8, False),
        (16, 4, True),
    ]
    tokens = {1: 0, 2: 0}
    decodes: tuple[int, ...] = ()
    for report in seen:
        for number, step in enumerate(report.steps):
            assert step.decodes is not None or number > 0, "a report can be read without those before"
            decodes = decodes if step.decodes is None else step.decodes
            for request_id in (*decodes, *(chunk.request_id for chunk in step.chunks if chunk.samples)):
                tokens[request_id] += 1
    assert tokens == {1: 5, 2: 9}
    assert [step.admitted for step in steps if step.admitted] == [(1,), (2,)]
    assert {step.bound_by for step in steps} >= {Bound.CHUNKED_PREFILL_SIZE, Bound.NOTHING}
    assert seen[-1].occupancy.running == 0, "the last report shows the engine as it waits"
    assert bench.link.outputs, "the outputs come as ever"


def test_nothing_is_reported_before_it_is_asked_for_and_after() -> None:
    bench, seen = watched(World(limits_of(chunk=8), num_pages=64, page_size=2))
    bench.link.put(Submit(1, (1,) * 20, resolved(5)))
    finish(bench)
    assert seen == []
    bench.link.put(WatchSteps(True), Submit(2, (1, 0), resolved(2)), WatchSteps(False))
    finish(bench)
    assert seen == []


def test_a_step_that_fails_is_reported_and_brings_no_token() -> None:
    world = World(limits_of(chunk=8), num_pages=64, page_size=2)
    bench, seen = watched(world, Faults(wait_raises=frozenset({1})))
    bench.link.put(WatchSteps(True), Submit(1, (1, 0), resolved(4)))
    finish(bench)
    assert [(step.failed, step.counts) for report in seen for step in report.steps] == [(False, ()), (True, ())]


def test_what_an_abort_leaves_behind_is_reported() -> None:
    bench, seen = watched(World(limits_of(chunk=8), num_pages=64, page_size=2))
    bench.link.put(WatchSteps(True), Submit(1, (1, 0), resolved(40)))
    bench.engine.step()
    bench.link.put(Abort(1))
    finish(bench)
    assert [len(report.steps) for report in seen] == [1]


def step_of(number: int, ended_at: float, *, launch: float = 0.0, wait: float = 0.0) -> tuple[BatchPlan, StepTimes]:
    chunk = Chunk(7, 0, number, 1, (), (), True)
    plan = BatchPlan(number, (), (chunk,), num_decodes=1)
    return plan, StepTimes(ended_at - launch - wait, ended_at, launch, wait)


def test_reports_gather_the_steps_of_a_while() -> None:
    """A message for each step would cost more than the step of a small model."""
    seen: list[StepsSeen] = []
    watch = StepWatch(seen.append)
    watch.follow(True)
    for number in itertools.count():
        plan, times = step_of(number, 10.0 + number * REPORT_SECONDS / 3.9)
        watch.ended(plan, BatchResult(number, ((1,),)), times)
        if watch.is_due(times.ended_at):
            watch.report(EMPTY, times.ended_at)
        if len(seen) == 3:
            break
    assert [len(report.steps) for report in seen] == [1, 4, 4]
    assert [step.decodes for step in seen[2].steps] == [(7,), None, None, None]
    for number in range(MOST_STEPS):
        assert not watch.is_due(times.ended_at)
        watch.ended(*_with_result(step_of(number, times.ended_at)))
    assert watch.is_due(times.ended_at), "however fast steps are, a message is bounded"


def _with_result(step: tuple[BatchPlan, StepTimes]) -> tuple[BatchPlan, BatchResult, StepTimes]:
    return step[0], BatchResult(step[0].step, ((1,),)), step[1]


def test_steps_follow_each_other_although_several_are_in_flight() -> None:
    """On a device the second one computes when the first one is done, however early it was launched."""
    seen: list[StepsSeen] = []
    watch = StepWatch(seen.append)
    watch.follow(True)
    for launched, ended, launch, wait in ((1.0, 3.0, 0.1, 1.5), (1.5, 4.0, 0.1, 0.9), (5.0, 5.5, 0.4, 0.0)):
        plan = BatchPlan(0, (), ())
        watch.ended(plan, BatchResult(0, ()), StepTimes(launched, ended, launch, wait))
    watch.report(EMPTY, 6.0)
    (report,) = seen
    assert [(step.began, step.micros, step.known) for step in report.steps] == [
        (1_000_000, 2_000_000, 3_000_000),
        (3_000_000, 1_000_000, 4_000_000),
        (5_000_000, 400_000, 5_500_000),
    ]


def test_slices_copies_and_rows_of_several_tokens() -> None:
    """An offloaded chunk is its slices, not a chunk as well; a row may bring none, or more than it promises."""
    seen: list[StepsSeen] = []
    watch = StepWatch(seen.append)
    watch.follow(True)
    decode, offloaded = Chunk(1, 0, 4, 1, (), (), True), Chunk(2, 1, 0, 8, (), (), True)
    done = ChunkSlice(offloaded, (), 0, (), 3, 5, 5)
    begun = ChunkSlice(Chunk(2, 1, 8, 8, (), (), True), (), 0, (), 0, 2, 5)
    copies = (PageCopy(0, Tier.DEVICE, 0, Tier.HOST, 0), PageCopy(1, Tier.HOST, 0, Tier.DEVICE, 0))
    plan = BatchPlan(3, (), (decode, offloaded), num_decodes=1, copies=copies, slices=(done, begun))
    watch.ended(plan, BatchResult(3, ((5, 6), ())), StepTimes(1.0, 2.0, 0.0, 1.0))
    watch.report(EMPTY, 2.0)
    (step,) = seen[0].steps
    assert step.chunks == ()
    assert [(each.request_id, each.first, each.stop, each.total, each.samples) for each in step.slices] == [
        (2, 3, 5, 5, True),
        (2, 0, 2, 5, False),
    ]
    assert step.counts == ((1, 2), (2, 0))
    assert (step.loads, step.stores) == (1, 1)

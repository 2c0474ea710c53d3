"""The recorder records every call of a scheduler, in order, and changes nothing."""

from __future__ import annotations

from dataclasses import replace

import pytest

from recorded import Kept, play, recorded_engine
from sluice.engine.clock import VirtualClock
from sluice.engine.engine import Engine
from sluice.engine.messages import Abort, FlushCache, QueryStats, Submit
from sluice.engine.trace import NullTrace, RecentSteps, StepTimes
from sluice.testing import Faults, ManualLink, resolved
from sluice.tracing.format import Abort as Aborted
from sluice.tracing.format import Add, End, Step
from sluice.tracing.recorder import Recorder
from sluice.types import BatchPlan, BatchResult, FinishReason, Output
from worlds import Arrival, Bench, World, limits_of

WORLD = World(limits_of(chunk=8), num_pages=32, page_size=2)
OVERLAP = replace(WORLD, limits=limits_of(chunk=8, lookahead=1), depth=2, late=True)


def kinds(kept: Kept) -> list[str]:
    return [type(record).__name__ for record in kept.records]


def steps(kept: Kept) -> list[Step]:
    return [record for record in kept.records if isinstance(record, Step)]


def numbers(kept: Kept) -> list[int]:
    """The numbers of all calls, in the order of the journal."""
    found: list[int] = []
    for record in kept.records:
        if isinstance(record, Step):
            found.append(record.planned)
        found += [] if record.number is None else [record.number]
    return found


def test_every_call_is_recorded_with_its_number() -> None:
    kept = Kept()
    engine = recorded_engine(WORLD, kept)
    engine.link.put(Submit(0, (1,) * 11, resolved(2), 1, "salt", 3))
    engine.step()
    engine.link.put(Abort(0, FinishReason.STOP), Abort(7))
    engine.step()
    engine.scheduler.forget_device()
    engine.link.put(FlushCache(1))
    engine.step()
    assert kinds(kept) == ["Add", "Step", "Abort", "Abort", "Nothing", "ForgetDevice", "FlushCache", "Nothing"]
    assert numbers(kept) == list(range(9))
    added, step, stopped, unknown = kept.records[:4]
    submit = Submit(0, (1,) * 11, resolved(2), 1, "salt", 3)
    assert added == Add.of(submit, number=0, at=0.0, refused=None)
    assert isinstance(step, Step)
    assert (step.planned, step.plan.step, step.error, step.ends) == (1, 0, None, ())
    assert (step.tokens, step.launched) == ((), True)
    assert isinstance(stopped, Aborted)
    assert (stopped.request_id, stopped.reason, stopped.ends) == (
        0, FinishReason.STOP, (End(0, FinishReason.STOP, 0, 0, None),),
    )  # fmt: skip
    assert isinstance(unknown, Aborted)
    assert (unknown.request_id, unknown.reason, unknown.ends) == (7, FinishReason.ABORT, ())


def test_a_request_is_recorded_as_the_scheduler_takes_it() -> None:
    kept, inner = Kept(), WORLD.scheduler().scheduler
    recorder = Recorder(inner, NullTrace(), kept, VirtualClock())
    recorder.add(Submit(0, (1, 0), resolved(2)))
    inner.add(Submit(1, (1, 0), resolved(2)))
    (added,) = kept.records
    assert added == Add.of(Submit(0, (1, 0), resolved(2)), number=0, at=0.0, refused=None)
    recorded, plain = inner.state.requests[0], inner.state.requests[1]
    assert replace(recorded.submit, request_id=1) == plain.submit


def test_a_device_that_is_forgotten_is_forgotten_by_the_scheduler() -> None:
    kept, inner = Kept(), WORLD.scheduler().scheduler
    engine = Engine(Recorder(inner, NullTrace(), kept, VirtualClock()), WORLD.shadow(), ManualLink())
    engine.link.put(Submit(0, (1,) * 10, resolved(2)))
    engine.step()
    while not engine.is_idle:
        engine.step()
    assert inner.state.kv.tree.num_pages > 0
    engine.scheduler.forget_device()
    assert inner.state.kv.tree.num_pages == 0


def test_closing_closes_the_trace_behind_it() -> None:
    """It may be another file."""

    class Closing(NullTrace):
        closed = False

        def close(self) -> None:
            self.closed = True

    trace, kept = Closing(), Kept()
    Recorder(WORLD.scheduler(), trace, kept, VirtualClock()).close()
    assert (trace.closed, kept.closed) == (True, True)


def test_with_steps_in_flight_the_numbers_are_the_order() -> None:
    """A step is recorded when it ends, after the next one was planned: in the journal's order a replay would plan too
    late."""
    kept = Kept()
    play(
        recorded_engine(OVERLAP, kept),
        [Arrival(0, Submit(0, (1,), resolved(4))), Arrival(2, Submit(1, (0,), resolved(1)))],
    )
    assert sorted(numbers(kept)) == list(range(len(numbers(kept))))
    assert numbers(kept) != sorted(numbers(kept))
    for one, other in zip(steps(kept), steps(kept)[1:], strict=False):
        assert one.planned < other.planned
        assert one.number is not None
        assert other.number is not None
        assert one.number < other.number
    first, second = steps(kept)[:2]
    assert first.number is not None
    assert second.planned < first.number, "the second is planned before the first has ended"


@pytest.mark.parametrize("world", [WORLD, OVERLAP])
def test_an_engine_does_the_same_with_it(world: World) -> None:
    arrivals = [Arrival(i, Submit(i, (i % 2,) * (3 + 5 * i), resolved(4, seed=i))) for i in range(4)]
    plain = Bench.of(world)
    outputs = play(plain.engine, arrivals).outputs
    assert play(recorded_engine(world, Kept()), arrivals).outputs == outputs


def test_refused_requests_are_recorded_and_refused() -> None:
    kept = Kept()
    engine = recorded_engine(WORLD, kept)
    engine.link.put(Submit(0, (1,), resolved(1)), Submit(0, (0,), resolved(1)), Submit(1, (1,) * 70, resolved(1)))
    engine.step()
    refused = [record.refused for record in kept.records if isinstance(record, Add)]
    assert refused[:2] == [None, "request id 0 is in use"]
    assert refused[2] is not None
    assert "exceed the KV pool" in refused[2]
    assert engine.link.end(1).finish_reason is FinishReason.ERROR


@pytest.mark.parametrize("at_launch", [True, False])
@pytest.mark.parametrize("world", [WORLD, OVERLAP])
def test_the_time_in_the_runner_is_each_steps_own(world: World, at_launch: bool) -> None:
    """With several steps in flight the time from launch to end counts the others' work too."""
    kept = Kept()
    play(recorded_engine(world, kept, at_launch=at_launch), [Arrival(0, Submit(0, (1,) * 12, resolved(5)))])
    for step in steps(kept):
        assert step.launched_at is not None
        assert step.ended_at is not None
        cost = len(step.plan.chunks) + (step.plan.num_tokens - step.plan.num_decodes) / 10
        expected = (cost, 0.0) if at_launch else (0.0, cost)
        assert (step.device_ms - step.wait_ms, step.wait_ms) == pytest.approx(expected)
        assert (step.ended_at - step.launched_at) * 1000 >= cost * 0.999
        assert step.host_ms == 0


class SlowPlanner:
    """Takes a second to plan, three to commit a result and five to fail a step."""

    def __init__(self, clock: VirtualClock) -> None:
        self.inner, self.clock = WORLD.scheduler(), clock
        self.add, self.has_work = self.inner.add, True

    def schedule(self) -> BatchPlan | None:
        self.clock.advance(1)
        return self.inner.schedule()

    def commit(self, plan: BatchPlan, result: BatchResult, micros: int = 0) -> list[Output]:
        self.clock.advance(3)
        return self.inner.commit(plan, result, micros)

    def fail(self, plan: BatchPlan, error: str, *, launched: bool = True) -> list[Output]:
        self.clock.advance(5)
        return self.inner.fail(plan, error, launched=launched)


def test_host_time_is_planning_and_committing() -> None:
    kept, clock = Kept(), VirtualClock(start=100)
    recorder = Recorder(SlowPlanner(clock), NullTrace(), kept, clock)
    recorder.add(Submit(0, (1,), resolved(3)))
    times = StepTimes(1.0, 2.0, 0.5, 0.25)
    for fails in (False, True):
        plan = recorder.schedule()
        assert plan is not None
        clock.advance(10)
        recorder.ended(plan, None, times)
        if fails:
            recorder.fail(plan, "no")
        else:
            recorder.commit(plan, BatchResult(plan.step, ((1,),)))
    committed, failed = steps(kept)
    assert (committed.planned_at, committed.host_ms, failed.host_ms) == (100, 4000, 6000)
    assert committed.number is not None
    assert (committed.launched_at, committed.ended_at) == (times.launched_at, times.ended_at)
    assert (committed.device_ms, committed.wait_ms) == (750, 250)


def test_times_are_microseconds_since_the_start() -> None:
    """Of the header's `unix_time`; more digits would only make the file longer."""
    kept, clock = Kept(), VirtualClock(start=100)
    recorder = Recorder(SlowPlanner(clock), NullTrace(), kept, clock, start=100)
    clock.advance(1 / 3)
    recorder.add(Submit(0, (1,), resolved(3)))
    plan = recorder.schedule()
    assert plan is not None
    recorder.ended(plan, None, StepTimes(101 + 1 / 3, 102 + 1 / 3, 1 / 3e4, 1 / 6e4))
    recorder.commit(plan, BatchResult(plan.step, ((1,),)))
    added, step = kept.records
    assert isinstance(added, Add)
    assert isinstance(step, Step)
    assert (added.at, step.planned_at, step.launched_at, step.ended_at) == (0.333333, 0.333333, 1.333333, 2.333333)
    assert (step.device_ms, step.wait_ms) == (0.05, 0.0167)


@pytest.mark.parametrize("faults", [Faults(launch_raises=frozenset({1})), Faults(wait_raises=frozenset({1}))])
def test_a_failed_step_has_its_error(faults: Faults) -> None:
    kept = Kept()
    play(recorded_engine(OVERLAP, kept, faults=faults), [Arrival(0, Submit(0, (1,) * 20, resolved(2)))])
    failed = steps(kept)[1]
    assert failed.tokens is None
    assert failed.error is not None
    assert "InjectedFault" in failed.error
    assert [end.request_id for end in failed.ends] == [0]
    assert failed.ended_at is not None
    assert [step.error for step in steps(kept)].count(None) == len(steps(kept)) - 1


def test_closing_records_the_steps_in_flight_and_closes_the_rest() -> None:
    """The step in which an engine hung or broke is the one that matters."""
    kept, recent = Kept(), RecentSteps()
    scheduler, clock = OVERLAP.scheduler(), VirtualClock()
    recorder = Recorder(scheduler, recent, kept, clock)
    recorder.add(Submit(0, (1,) * 20, resolved(3)))
    first, second = recorder.schedule(), recorder.schedule()
    assert first is not None
    assert second is not None
    recorder.ended(first, BatchResult(0, ()), StepTimes(0, 1, 1, 0))
    assert recent.latest is not None
    assert recorder.latest == recent.latest
    recorder.close()
    recorder.close()
    assert [(step.plan, step.number, step.launched_at, step.ended_at, step.device_ms) for step in steps(kept)] == [
        (first, None, 0, 1, 1000),
        (second, None, None, None, 0),
    ]
    assert kept.closed == 2, "the journal must bear a second close"


def test_a_scheduler_that_breaks_leaves_its_last_call() -> None:
    """So that a replay breaks at the same place."""
    kept = Kept()
    recorder = Recorder(WORLD.scheduler(), NullTrace(), kept, VirtualClock())
    recorder.add(Submit(0, (1,), resolved(3)))
    plan = recorder.schedule()
    assert plan is not None
    with pytest.raises(AssertionError):
        recorder.commit(plan, BatchResult(99, ()))
    assert [step.number is not None for step in steps(kept)] == [True]
    assert steps(kept)[0].tokens == ()


def test_a_journal_is_flushed_when_the_engine_may_sleep() -> None:
    """A reader of an idle server's file sees the last request."""
    kept = Kept()
    engine = recorded_engine(WORLD, kept)
    engine.link.put(Submit(0, (1,), resolved(2)))
    engine.step()
    assert kept.flushes == []
    engine.step()
    assert kept.flushes == [3], "when the last request has left"
    engine.link.put(Submit(1, (1,), resolved(2)))
    engine.step()
    engine.link.put(Abort(1))
    engine.step()
    assert len(kept.flushes) == 2, "by an abort too"
    engine.link.put(Submit(2, (1,) * 99, resolved(2)))
    engine.step()
    assert len(kept.flushes) == 3, "by a refusal too"


def test_queries_are_answered_and_not_recorded() -> None:
    kept = Kept()
    engine = recorded_engine(WORLD, kept)
    engine.link.put(Submit(0, (1,), resolved(2)), QueryStats(5))
    engine.step()
    assert engine.link.stats[0].occupancy.waiting == 1
    assert kinds(kept) == ["Add", "Step"]


def test_a_flush_of_an_idle_engine_is_seen_at_once() -> None:
    """The engine sleeps after it, and a reader would wait for its next request."""
    kept = Kept()
    assert Recorder(WORLD.scheduler(), NullTrace(), kept, VirtualClock()).flush_cache() == 0
    assert kept.flushes == [1]

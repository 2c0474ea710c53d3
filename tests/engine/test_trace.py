"""Records and log lines of steps."""

from __future__ import annotations

import logging
from dataclasses import replace

import pytest

from sluice.engine.clock import VirtualClock
from sluice.engine.engine import Engine
from sluice.engine.messages import Abort, QueryStats, Submit
from sluice.engine.trace import WARN_AFTER, ChunkLog, NullTrace, PacingLog, RecentSteps, StepTimes
from sluice.testing import Faults, FaultyRunner, ManualLink, resolved
from sluice.types import BatchPlan, BatchResult, Bound, Occupancy, PredictedStep, Regime
from worlds import World, limits_of

WORLD = World(limits_of(chunk=8), num_pages=32, page_size=2)


class SlowRunner:
    """Each launch takes a second more than the one before."""

    def __init__(self, world: World, clock: VirtualClock, faults: Faults | None = None) -> None:
        self.inner = FaultyRunner(world.shadow(), faults or Faults())
        self.clock = clock
        self.launches = 0

    def launch(self, plan: BatchPlan) -> object:
        self.launches += 1
        self.clock.advance(float(self.launches))
        return self.inner.launch(plan)

    def close(self) -> None:
        self.inner.close()


class ClosingRunner(SlowRunner):
    """Counts how often it was closed."""

    closed = 0

    def close(self) -> None:
        self.closed += 1


def engine_of(
    trace: NullTrace | RecentSteps | ChunkLog | None,
    *,
    world: World = WORLD,
    faults: Faults | None = None,
    depth: int = 1,
) -> Engine:
    clock = VirtualClock()
    runner = SlowRunner(world, clock, faults)
    return Engine(world.scheduler(), runner, ManualLink(), depth=depth, clock=clock, trace=trace)


def run(engine: Engine, *submits: Submit) -> ManualLink:
    link: ManualLink = engine.link
    link.put(*submits)
    engine.step()
    while not engine.is_idle:
        engine.step()
    return link


def test_a_record_says_what_was_in_a_step_and_what_bound_it() -> None:
    trace = RecentSteps()
    run(engine_of(trace), Submit(0, (1,), resolved(3)), Submit(1, (0,) * 10, resolved(1)))
    seen = [
        (r.step, r.rows, r.decode_rows, r.prefill_rows, r.prefill_tokens, r.tokens, r.bound_by) for r in trace.records
    ]
    assert seen == [
        (0, 2, 0, 2, 7, 7, Bound.CHUNKED_PREFILL_SIZE),
        (1, 2, 1, 1, 4, 5, Bound.NOTHING),
        (2, 1, 1, 0, 0, 1, Bound.NOTHING),
    ]
    assert [(r.launched_at, r.ended_at) for r in trace.records] == [(0, 1), (1, 3), (3, 6)]
    assert not any(r.failed for r in trace.records)


def test_the_last_token_of_a_prompt_is_prefill_though_it_comes_alone() -> None:
    """A row of length 1 that samples is not always a decode."""
    trace = RecentSteps()
    world = replace(WORLD, limits=limits_of(chunk=8, batch=8, running=2))
    run(engine_of(trace, world=world), Submit(0, (1,) * 9, resolved(2)))
    assert [(r.prefill_tokens, r.decode_rows) for r in trace.records] == [(8, 0), (1, 0), (0, 1)]


@pytest.mark.parametrize("faults", [Faults(launch_raises=frozenset({1})), Faults(wait_raises=frozenset({1}))])
@pytest.mark.parametrize("depth", [1, 2])
def test_failed_steps_are_recorded_in_their_order(faults: Faults, depth: int) -> None:
    trace = RecentSteps()
    run(engine_of(trace, faults=faults, depth=depth), Submit(0, (1,) * 20, resolved(2)), Submit(1, (0,), resolved(5)))
    assert [r.step for r in trace.records] == list(range(len(trace.records)))
    assert [r.failed for r in trace.records][:3] == [False, True, False]


def test_only_the_last_steps_are_kept() -> None:
    trace = RecentSteps(keep=3)
    assert trace.latest is None
    run(engine_of(trace), Submit(0, (1,), resolved(9)))
    assert [r.step for r in trace.records] == [6, 7, 8]
    assert trace.latest == trace.records[-1]
    only = RecentSteps(keep=1)
    run(engine_of(only), Submit(0, (1,), resolved(3)))
    assert [r.step for r in only.records] == [2]
    with pytest.raises(ValueError, match="keep must be at least 1, got 0"):
        RecentSteps(keep=0)


def test_an_engine_answers_with_its_stats() -> None:
    """Even when it is idle, without a step."""
    engine = engine_of(RecentSteps())
    link = run(engine)
    link.put(QueryStats(7))
    engine.step()
    assert [(s.query_id, s.last_step) for s in link.stats] == [(7, None)]
    assert link.stats[0].occupancy == Occupancy(0, 0, 32, 0, 32)

    requests = [Submit(i, (i % 2,) * 3 + (i,), resolved(6)) for i in range(5)]
    link.put(*requests)
    engine.step()
    link.put(QueryStats(8))
    engine.step()
    stats = link.stats[-1]
    assert stats.occupancy == Occupancy(running=2, waiting=3, free_pages=28, cached_pages=0, total_pages=32)
    assert stats.last_step is not None
    assert (stats.last_step.step, stats.last_step.bound_by) == (0, Bound.CHUNKED_PREFILL_SIZE)
    while not engine.is_idle:
        engine.step()
    link.put(QueryStats(9))
    engine.step()
    running, waiting, free, cached, total, *_ = link.stats[-1].occupancy
    assert (running, waiting, free + cached, total) == (0, 0, 32, 32)
    assert cached > 0


def test_without_a_trace_nothing_is_kept() -> None:
    engine = engine_of(None)
    link = run(engine, Submit(0, (1,), resolved(2)))
    link.put(QueryStats(1))
    engine.step()
    assert link.stats[0].last_step is None
    assert isinstance(engine.trace, NullTrace)


def lines(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.name == "sluice.engine"]


def test_each_chunk_of_a_cut_prompt_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    """With the request's id, the number of the chunk, extend_len and the cached prefix; a whole one is not logged."""
    engine = engine_of(ChunkLog(RecentSteps()))
    with caplog.at_level(logging.INFO, logger="sluice.engine"):
        run(engine, Submit(0, (1,) * 7, resolved(1)))
        assert lines(caplog) == []
        run(engine, Submit(1, (1,) * 6 + (0,) * 11, resolved(2)))
    assert lines(caplog) == [
        "request 1: chunk 1 of its prompt in step 1: extend_len 8, from 6, cached prefix 6",
        "request 1: chunk 2 of its prompt in step 2: extend_len 3, from 14, cached prefix 6, the last",
    ]
    assert engine.trace.latest is not None
    assert engine.trace.latest.step == 3


def test_a_prompt_left_half_computed_does_not_count_for_the_next_one(caplog: pytest.LogCaptureFixture) -> None:
    """The next request in the same slot begins with chunk 1."""
    engine = engine_of(ChunkLog(NullTrace()))
    link: ManualLink = engine.link
    with caplog.at_level(logging.INFO, logger="sluice.engine"):
        link.put(Submit(0, (1,) * 30, resolved(1)))
        engine.step()
        link.put(Abort(0), Submit(1, (0,) * 12, resolved(1)))
        while not engine.is_idle:
            engine.step()
    assert [line.split(" of its")[0] for line in lines(caplog)] == [
        "request 0: chunk 1",
        "request 1: chunk 1",
        "request 1: chunk 2",
    ]


class KeptTimes(NullTrace):
    """Keeps the times of every step."""

    def __init__(self) -> None:
        self.times: list[StepTimes] = []

    def ended(self, plan: BatchPlan, result: BatchResult | None, times: StepTimes) -> None:
        self.times.append(times)


def test_a_launch_that_fails_took_its_time_too() -> None:
    trace = KeptTimes()
    engine = engine_of(trace, faults=Faults(launch_raises=frozenset({1})))
    run(engine, Submit(0, (1,), resolved(3)))
    assert trace.times == [StepTimes(0, 1, 1, 0, micros=1_000_000), StepTimes(1, 3, 2, 0)]


class ClosingTrace(NullTrace):
    """Records that it was closed."""

    closed = False

    def close(self) -> None:
        self.closed = True


class BrokenTrace(NullTrace):
    """Cannot be closed."""

    def close(self) -> None:
        raise OSError("no space left")


def test_a_trace_that_cannot_be_closed_leaves_nothing_else_open() -> None:
    """The page file stayed in use, because the trace was on a full disk."""
    runner = ClosingRunner(WORLD, VirtualClock())
    engine = Engine(WORLD.scheduler(), runner, ManualLink(), trace=BrokenTrace())
    with pytest.raises(OSError, match="no space left"):
        engine.close()
    assert runner.closed == 1


def test_an_engine_closes_its_trace_through_the_log() -> None:
    """Or a trace file would lack its end."""
    trace = ClosingTrace()
    Engine(WORLD.scheduler(), WORLD.shadow(), ManualLink(), trace=ChunkLog(trace)).close()
    assert trace.closed


def test_an_infeasible_target_is_logged_once_and_not_for_a_pause(caplog: pytest.LogCaptureFixture) -> None:
    """One slow step used the only warning up, and a server that could never keep its target then said nothing."""
    log, times = PacingLog(NullTrace()), StepTimes(0.0, 0.0, 0.0, 0.0)

    def end(*, infeasible: bool, steps: int = 1) -> None:
        for _ in range(steps):
            log.ended(
                BatchPlan(0, (), (), pace=PredictedStep(Regime.MIXED, 20_000, 25_000, 30_000, infeasible)), None, times
            )

    end(infeasible=True, steps=WARN_AFTER - 1)
    end(infeasible=False)
    end(infeasible=True, steps=WARN_AFTER - 1)
    assert not caplog.records
    end(infeasible=True, steps=2 * WARN_AFTER)
    (line,) = [record.getMessage() for record in caplog.records]
    assert "target of 20.0 ms is infeasible" in line
    assert "smallest chunk" in line

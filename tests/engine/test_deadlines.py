"""Late requests are dropped before anything is computed for them."""

from __future__ import annotations

import random

from recorded import Kept
from recording import RecordingRunner
from sluice.engine.clock import VirtualClock
from sluice.engine.deadlines import KEPT_STALE, Deadlines
from sluice.engine.engine import Engine
from sluice.engine.messages import Abort, FlushCache, Submit
from sluice.engine.trace import NullTrace, RecentSteps
from sluice.testing import ManualLink, ShadowRunner, resolved
from sluice.tracing.format import Abort as Aborted
from sluice.tracing.recorder import Recorder
from sluice.types import FinishReason, Output
from support import shape
from worlds import World, limits_of


class Bench:
    """An engine with one slot whose clock the test advances."""

    def __init__(self, running: int = 1) -> None:
        world = World(limits_of(chunk=8, running=running), num_pages=32, page_size=4)
        self.clock, self.link = VirtualClock(), ManualLink()
        self.runner = RecordingRunner(ShadowRunner(page_size=4))
        self.scheduler = world.scheduler()
        self.engine = Engine(self.scheduler, self.runner, self.link, clock=self.clock, trace=RecentSteps())

    def submit(self, request_id: int, *, start_deadline: float | None = None, deadline: float | None = None) -> None:
        sampling = resolved(20)
        self.link.put(
            Submit(request_id, (request_id, 2, 3), sampling, start_deadline=start_deadline, deadline=deadline)
        )

    def step(self, seconds: float = 1.0) -> None:
        self.engine.step()
        self.clock.advance(seconds)

    def rows_of(self, request_id: int) -> int:
        return sum(row[0] == request_id for plan in self.runner.plans for row in shape(plan))


def test_a_request_that_waits_too_long_is_never_prefilled() -> None:
    """It was computed all the same, and answered with a token and status 200."""
    bench = Bench()
    bench.submit(0)
    bench.submit(1, start_deadline=3.0)
    bench.submit(2, deadline=3.0)
    for _ in range(4):
        bench.step()
        bench.engine.step()
    assert bench.link.end(1).finish_reason is FinishReason.EXPIRED
    assert bench.link.end(2).finish_reason is FinishReason.TIMEOUT
    assert bench.rows_of(1) == bench.rows_of(2) == 0
    assert bench.rows_of(0) == 8


def test_a_deadline_that_is_over_on_arrival() -> None:
    """The engine was in a long step while the request lay in the socket."""
    bench = Bench()
    bench.clock.advance(10)
    bench.submit(0, start_deadline=9.0)
    bench.submit(1, deadline=10.0)
    bench.step()
    assert bench.link.end(0).finish_reason is FinishReason.EXPIRED
    assert bench.link.end(1).finish_reason is FinishReason.TIMEOUT
    assert not bench.runner.plans


def test_a_begun_request_cannot_miss_its_start_deadline_but_can_miss_the_other() -> None:
    bench = Bench(running=2)
    bench.submit(0, start_deadline=1.0)
    bench.submit(1, start_deadline=1.0, deadline=5.0)
    for _ in range(25):
        bench.step()
    assert bench.link.end(0).finish_reason is FinishReason.LENGTH
    last = bench.link.end(1)
    assert (last.finish_reason, last.start) == (FinishReason.TIMEOUT, 5)
    assert bench.link.tokens(1) == bench.link.tokens(1)[:5]
    assert bench.engine.is_idle


def test_an_ended_request_has_no_deadline() -> None:
    bench = Bench()
    bench.submit(0, start_deadline=50.0, deadline=90.0)
    bench.step()
    bench.link.put(Abort(0))
    bench.step(100.0)
    bench.step()
    assert bench.link.end(0).finish_reason is FinishReason.ABORT


def test_no_deadline_outlives_its_request() -> None:
    """They would pile up in memory, and a trace would record aborts of requests that had long ended."""
    kept, clock, link = Kept(), VirtualClock(), ManualLink()
    world = World(limits_of(), num_pages=8, page_size=4)
    recorder = Recorder(world.scheduler(), NullTrace(), kept, clock)
    engine = Engine(recorder, world.shadow(), link, clock=clock)
    link.put(Submit(0, (1, 1), resolved(1), deadline=5.0), Submit(1, (1, 0), resolved(1)))
    engine.step()
    clock.advance(9)
    link.put(Submit(2, (0, 1), resolved(1)))
    engine.step()
    assert {link.end(request_id).finish_reason for request_id in range(3)} == {FinishReason.LENGTH}
    assert not [record for record in kept.records if isinstance(record, Aborted)]


def test_deadlines_against_a_slow_model() -> None:
    """Each is due once, in time, unless its request has ended; deadlines of ended requests do not pile up."""
    draw, deadlines = random.Random(1), Deadlines()
    open_ones: dict[int, list[tuple[float, FinishReason]]] = {}
    submits: dict[int, Submit] = {}
    now = 0.0
    for request_id in range(3000):
        now += draw.random()
        start_deadline, deadline = (draw.choice([None, now + draw.random() * 40, now + 5000]) for _ in range(2))
        submits[request_id] = Submit(request_id, (1,), resolved(), start_deadline=start_deadline, deadline=deadline)
        deadlines.watch(submits[request_id])
        wanted = [(start_deadline, FinishReason.EXPIRED), (deadline, FinishReason.TIMEOUT)]
        open_ones[request_id] = [(at, reason) for at, reason in wanted if at is not None]
        late = sorted((at, i, reason) for i, those in open_ones.items() for at, reason in those if at <= now)
        assert list(deadlines.due(now)) == [(i, reason) for _, i, reason in late]
        for i in open_ones:
            open_ones[i] = [(at, reason) for at, reason in open_ones[i] if at > now]
        if draw.random() < 0.97:
            ended = draw.choice(sorted(open_ones))
            del open_ones[ended]
            deadlines.forget([Output(ended, 0, (), 0, FinishReason.ABORT), Output(-1, 0, (5,), 0)])
        assert deadlines or not any(open_ones.values())
        watched = [i for i, submit in submits.items() if i in open_ones and (submit.start_deadline or submit.deadline)]
        assert deadlines.num_kept <= KEPT_STALE + 4 * len(watched)
    deadlines.forget([Output(i, 0, (), 0, FinishReason.STOP) for i in open_ones])
    assert list(deadlines.due(now + 5001)) == []
    assert not deadlines


def test_a_flush_forgets_unused_pages() -> None:
    bench = Bench(running=2)
    bench.link.put(Submit(0, (5,) * 9, resolved(1)))
    bench.step()
    bench.link.put(Submit(1, (6,) * 9, resolved(9)))
    bench.step()
    assert bench.scheduler.occupancy().cached_pages == 2
    bench.link.put(FlushCache(77))
    bench.step()
    (answer,) = bench.link.stats
    assert answer.query_id == 77
    assert answer.occupancy.cached_pages == 0
    bench.link.put(Submit(2, (6,) * 9, resolved(1)), Submit(3, (5,) * 9, resolved(1)))
    for _ in range(9):
        bench.step()
    assert bench.link.end(2).num_cached_tokens == 8, "in use, so it stayed"
    assert bench.link.end(3).num_cached_tokens == 0

"""The counts of an engine: steps, limits, and how long requests waited."""

from __future__ import annotations

from dataclasses import replace

import pytest

from sluice.engine.clock import VirtualClock
from sluice.engine.engine import Engine
from sluice.engine.messages import Abort, QueryStats, Stats, Submit
from sluice.engine.meter import REQUEST_SECONDS, STEP_SECONDS, STEP_TOKENS, Histogram, Meter, Totals
from sluice.engine.trace import StepTimes
from sluice.testing import Faults, FaultyRunner, ManualLink, resolved
from sluice.types import BatchPlan, BatchResult, Bound, Chunk, ChunkSlice, TierLimits
from worlds import World, limits_of, offload_of

WORLD = World(limits_of(chunk=8, running=2), num_pages=32, page_size=2)


class SecondRunner:
    """Every launch takes a second."""

    def __init__(self, world: World, clock: VirtualClock, faults: Faults) -> None:
        self.inner = FaultyRunner(world.shadow(), faults)
        self.clock = clock

    def launch(self, plan: BatchPlan) -> object:
        self.clock.advance(1.0)
        return self.inner.launch(plan)

    def close(self) -> None:
        self.inner.close()


def engine_of(world: World = WORLD, faults: Faults | None = None) -> Engine:
    clock = VirtualClock(100.0)
    runner = SecondRunner(world, clock, faults or Faults())
    return Engine(world.scheduler(), runner, ManualLink(), clock=clock)


def finish(engine: Engine) -> Stats:
    """Run until nothing is left, and return the stats."""
    link: ManualLink = engine.link
    engine.step()
    while not engine.is_idle:
        engine.step()
    link.put(QueryStats(1))
    engine.step()
    return link.stats[-1]


def counted(totals: Totals) -> dict[Bound, int]:
    return {bound: count for bound, count in zip(Bound, totals.bound_by, strict=True) if count}


def test_a_histogram_puts_a_value_into_the_first_bucket_that_holds_it() -> None:
    """Prometheus' `le` is "less or equal": a value on the border belongs below it."""
    histogram = Histogram((1.0, 2.5))
    for value in (0.5, 1.0, 1.5, 2.5, 2.6, 100.0):
        histogram.add(value)
    assert histogram.tally() == ((1.0, 2.5), (2, 2, 2), 108.1)


@pytest.mark.parametrize("bounds", [STEP_TOKENS, STEP_SECONDS, REQUEST_SECONDS])
def test_bounds_grow(bounds: tuple[float, ...]) -> None:
    """Values land in the wrong bucket otherwise."""
    assert list(bounds) == sorted(set(bounds))


def test_drafts_are_counted_by_their_position() -> None:
    """Acceptance by position says how many drafts are worth it. A step that failed has shown nothing."""
    limits = limits_of(chunk=8, running=1, num_draft_tokens=3)
    engine = engine_of(World(limits, num_pages=32, page_size=2, drafts_right=1.0), Faults(wait_raises=frozenset({8})))
    engine.link.put(Submit(0, (1,), resolved(12)))
    while not engine.scheduler.scheduler.state.drafter.accepted:
        engine.step()
    engine.link.put(Submit(1, (0, 1), resolved(30)))
    totals, drafter = finish(engine).totals, engine.scheduler.scheduler.state.drafter
    drafts = totals.drafts
    assert (drafts.drafted, drafts.accepted) == (drafter.drafted, drafter.accepted)
    assert drafts.accepted == sum(drafts.accepted_at) > drafts.rows
    assert drafts.rows == drafts.accepted_at[0] >= drafts.accepted_at[1] >= drafts.accepted_at[2] > 0
    assert totals.failed_steps == 1
    assert totals.prefill_tokens == 3


def test_layers_of_a_chunk_count_as_their_share_of_its_tokens() -> None:
    """Counted whole in the last of its steps, a token of a prompt seems to take a part of what it takes."""
    chunk, other = Chunk(0, 0, 0, 100, (1,) * 100, (), True), Chunk(1, 1, 0, 20, (1,) * 20, (), True)
    meter, times = Meter(), StepTimes(0.0, 1.0, 0.0, 1.0, 1_000_000)
    result = BatchResult(0, ())
    for first, stop, own in ((0, 4, ()), (4, 8, (other,)), (8, 10, (chunk,))):
        part = ChunkSlice(chunk, (), 0, (), first, stop, 10, is_resident=True)
        meter.ended(BatchPlan(0, (), own, slices=(part,)), result, times)
    totals = meter.totals()
    assert totals.prefill_tokens == 120
    assert totals.prefill_squares == 40 * 40 + 60 * 60 + 20 * 20
    assert totals.prefill_products == pytest.approx(120.0)


def test_drafts_behind_a_token_that_ends_the_answer_are_not_counted() -> None:
    """More guesses were accepted than the answer has tokens."""
    limits = limits_of(chunk=8, running=1, num_draft_tokens=6)
    world = World(limits, num_pages=32, page_size=2, drafts_right=1.0, drafts_eager=True)
    engine = engine_of(world)
    engine.link.put(Submit(0, (0, 0, 1), resolved(12, stop_token_ids=(1,))))
    drafts = finish(engine).totals.drafts
    assert 0 < drafts.accepted < len(engine.link.tokens(0)) < drafts.drafted


def test_steps_are_counted_by_what_they_held() -> None:
    engine = engine_of()
    engine.link.put(Submit(0, (1,), resolved(3)), Submit(1, (0,) * 10, resolved(1)))
    totals = finish(engine).totals
    # chunks of 1 and 6, then of 4 beside a decode, then a decode
    assert (totals.steps, totals.failed_steps, totals.decode_tokens) == (3, 0, 2)
    assert (totals.prefill_chunks, totals.prefill_tokens) == (3, 11)
    assert (totals.prefill_squares, totals.prefill_products) == (7 * 7 + 4 * 4, pytest.approx(7.0 + 4.0)), (
        "a second each"
    )
    assert counted(totals) == {Bound.CHUNKED_PREFILL_SIZE: 1, Bound.NOTHING: 2}
    assert totals.tokens is not None
    assert totals.step_seconds is not None
    assert (totals.tokens.total, sum(totals.tokens.counts), totals.tokens.counts[0]) == (13.0, 3, 1)
    assert totals.step_seconds.total == 3.0


def test_an_offloaded_token_is_no_prefill() -> None:
    """Counted as part of a prompt, a long answer behind a long context would look like prompts without end, and its
    half-computed prompt like none."""
    offload = offload_of(above=16, window_pages=8)
    world = replace(WORLD, tiers=TierLimits(disk_pages=40), offload=offload)
    engine = engine_of(world)
    engine.link.put(Submit(0, (0, 1) * 15, resolved(5)))
    engine.step()
    engine.link.put(QueryStats(0))
    engine.step()
    assert engine.link.stats[-1].occupancy.partial == 1
    stats = finish(engine)
    assert stats.occupancy.partial == 0
    assert (stats.totals.decode_tokens, stats.totals.prefill_tokens, stats.totals.prefill_chunks) == (4, 30, 4)


def test_failed_steps_count_as_steps() -> None:
    engine = engine_of(faults=Faults(launch_raises=frozenset({0}), wait_raises=frozenset({2})))
    engine.link.put(Submit(0, (1,), resolved(3)))
    engine.step()
    engine.link.put(Submit(1, (1,), resolved(3)))
    totals = finish(engine).totals
    assert (totals.steps, totals.failed_steps) == (3, 2)


def test_times_of_a_request() -> None:
    """Waiting, prefill and decoding: their times cannot be measured from outside the engine."""
    engine = engine_of()
    engine.link.put(*(Submit(i, (i % 2,) * 12, resolved(4)) for i in range(3)))
    totals = finish(engine).totals
    queue, prefill, decode = totals.queue_seconds, totals.prefill_seconds, totals.decode_seconds
    inference = totals.inference_seconds
    assert queue is not None
    assert prefill is not None
    assert decode is not None
    assert inference is not None
    assert [sum(tally.counts) for tally in (queue, prefill, decode)] == [3, 3, 3]
    # 0 begins at once; 1 in the same step or the next; 2 when one of them has ended
    assert decode.total == 9.0, "three tokens after the first, a second each, three times"
    assert queue.total > 3.0
    assert inference.total == prefill.total + decode.total
    assert sum(inference.counts) == 3
    assert engine.meter.num_open == 0


def test_the_time_in_the_queue_is_that_of_the_first_time() -> None:
    """A request that is preempted and begins again would count twice, and the first wait with the second."""
    engine = engine_of(World(limits_of(chunk=16, running=4), num_pages=12, page_size=2))
    engine.link.put(*(Submit(i, (i % 2, 1, 0)[: 2 + i % 2], resolved(9, seed=i)) for i in range(4)))
    stats = finish(engine)
    assert stats.occupancy.preemptions > 0, "no request was preempted"
    assert stats.totals.queue_seconds is not None
    assert sum(stats.totals.queue_seconds.counts) == 4
    assert stats.totals.queue_seconds.total < 30.0


def test_a_request_that_never_begins_is_not_timed() -> None:
    """Nothing of it is kept: a meter that remembers every refused or aborted request grows for ever."""
    engine = engine_of()
    engine.link.put(Submit(0, (1,), resolved(9)), Submit(1, (0,), resolved(9)), Submit(2, (1,), resolved(9)))
    engine.link.put(Submit(3, (), resolved(9)))
    engine.step()
    assert engine.meter.num_open == 3
    engine.link.put(Abort(2), Abort(0))
    totals = finish(engine).totals
    times = (totals.queue_seconds, totals.prefill_seconds, totals.decode_seconds, totals.inference_seconds)
    assert [tally and sum(tally.counts) for tally in times] == [2, 2, 2, 2]
    assert engine.meter.num_open == 0


def test_outputs_of_unknown_requests_count_for_nothing() -> None:
    """A refused request gets an output, and never arrived."""
    meter = Meter()
    assert meter.totals().steps == 0
    engine = engine_of()
    engine.link.put(Submit(0, (), resolved(1)))
    assert finish(engine).totals[-5:] == meter.totals()[-5:]


def test_partial_prefills_are_reported() -> None:
    engine = engine_of()
    engine.link.put(Submit(0, (1,) * 20, resolved(1)))
    engine.step()
    engine.link.put(QueryStats(0))
    engine.step()
    assert engine.link.stats[0].occupancy.partial == 1
    assert finish(engine).occupancy.partial == 0

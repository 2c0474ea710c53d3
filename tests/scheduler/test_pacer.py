"""Chunks by time: how much a step prefills so that streams beside it do not stand still for longer than the target."""

from __future__ import annotations

import random
from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slow import examples, products, slow
from sluice.scheduler.batch import BatchBuilder
from sluice.scheduler.cost import CostPrior, StepLoad
from sluice.scheduler.pacer import Pacing
from sluice.scheduler.within import tokens_within
from sluice.testing.laws.plans import steps_to_prefill
from sluice.types import BatchPlan, Bound, Regime, SchedulerLimits
from timed import Timed, time_of
from worlds import limits_of, offload_of

MS = 1000


def target_of(millis: float, **changed: object) -> SchedulerLimits:
    limits = limits_of(chunk=1024, running=16, max_partial_prefills=4, itl_target=round(millis * MS))
    return replace(limits, **changed)


def mix(timed: Timed, streams: int = 4, prompts: int = 6) -> None:
    """Streams, and long prompts beside them."""
    for _ in range(streams):
        timed.ask(20, 400)
    for length in range(prompts):
        timed.ask(1500 + 100 * length, 10)


@products(millis=[60, 100, 300], factor=[0.1, 1.0, 10.0])
def test_no_step_beside_streams_exceeds_the_target(millis: int, factor: float) -> None:
    """From the first step on, on a machine that is nothing like the prior."""
    prior = CostPrior(*(factor * each for each in (30_000, 300.0, 50.0, 0.05, 0.1, 0.001)))
    timed = Timed(target_of(millis), pacing=Pacing(prior))
    mix(timed)
    mixed = [step for step in timed.run() if step.is_mixed]
    assert max(step.micros for step in mixed[:50]) <= 1.5 * millis * MS
    assert max(step.micros for step in mixed[50:]) <= 1.02 * millis * MS


@pytest.mark.parametrize("millis", [60, slow(100), slow(300)])
def test_the_time_is_used(millis: int) -> None:
    """A target that is kept by prefilling next to nothing keeps everybody waiting."""
    timed = Timed(target_of(millis, itl_quantile=0.5))
    mix(timed)
    mixed = [step for step in timed.run() if step.is_mixed]
    full = [step for step in mixed[40:] if step.plan.bound_by is Bound.ITL_TARGET]
    assert len(full) > 10
    assert min(step.micros for step in full) >= 0.75 * millis * MS


def test_an_unknown_machine_is_approached_slowly() -> None:
    """The prior may be wrong by anything: what is planned at most doubles what was seen."""
    timed = Timed(target_of(10_000), pacing=Pacing(CostPrior(token=0.001, pair=1e-9)))
    timed.ask(8, 200)
    timed.run(3)
    timed.ask(1500, 4)
    chunks = [step.prefill for step in timed.run() if step.is_mixed]
    assert chunks[0] <= 16
    assert all(after <= 2 * max(8, before) for before, after in pairwise(chunks))
    assert max(chunks) >= 256


def test_prompts_without_streams_are_capped_as_well() -> None:
    """A lonely prompt took a step of 6.8 s, for which every newcomer waited."""
    timed = Timed(target_of(100))
    timed.ask(4000, 1)
    steps = timed.run()
    assert max(step.micros for step in steps) <= 2.1 * 100 * MS
    assert max(step.prefill for step in steps) >= 128


def test_an_infeasible_target_is_said_and_chunks_stay_steady() -> None:
    """Decodes alone take longer than the target: prefill must go on, and in even chunks, not in fits and starts."""
    timed = Timed(target_of(21))
    mix(timed, streams=12, prompts=3)
    mixed = [step for step in timed.run() if step.plan.num_decodes >= 12 and step.prefill]
    late = mixed[60:]
    assert len(late) > 50
    assert all(step.plan.pace is not None and step.plan.pace.is_infeasible for step in late)
    deep = [step.prefill for step in late if not any(chunk.samples for chunk in step.plan.chunks[12:])]
    assert all(abs(after - before) <= 8 for before, after in pairwise(deep))
    assert timed.engine.meter.totals().itl is not None


def test_a_target_just_feasible_leaves_a_quantum_to_prefill() -> None:
    """However little time is left beside decodes, a prompt that waits gets something in every step."""
    alone = 20_000 + 4 * (900 + 150) + 0.2 * 4 * 200
    timed = Timed(target_of(alone * 1.1 / MS))
    for _ in range(4):
        timed.ask(20, 400)
    timed.run(20)
    timed.ask(400, 1)
    prefill = [step.prefill for step in timed.run(20)]
    assert set(prefill) == {8}


def test_pages_are_cut_where_a_whole_one_costs_too_much() -> None:
    """A page of 32 tokens took 30 ms here: with whole pages alone the target would be missed, or prefill starve."""
    timed = Timed(target_of(50))
    mix(timed)
    mixed = [step for step in timed.run() if step.is_mixed]
    ends = {chunk.end % 32 for step in mixed for chunk in step.plan.chunks if not chunk.samples}
    assert ends <= {0, 8, 16, 24}
    assert ends > {0}


def test_a_machine_at_half_speed_is_within_the_target_again_soon() -> None:
    """A busy neighbour on one core, in mid-run."""
    slow = False

    def time(plan: BatchPlan) -> float:
        return time_of(plan) * (2 if slow else 1)

    timed = Timed(target_of(150), time)
    mix(timed, prompts=20)
    timed.run(150)
    slow = True
    mixed = [step for step in timed.run(60) if step.is_mixed]
    assert mixed[0].micros > 1.5 * 150 * MS
    assert max(step.micros for step in mixed[10:]) <= 1.1 * 150 * MS


def test_a_machine_that_drifts_is_within_the_target_nearly_always() -> None:
    """Neighbours come and go, so steps differ by a tenth and more from one stretch to the next, and some pause. A fixed
    chunk had up to 34% of its mixed steps above the target by more than a tenth."""
    draw, drift = random.Random(1), 1.0

    def time(plan: BatchPlan) -> float:
        nonlocal drift
        drift = 0.8 * drift + 0.2 * draw.uniform(0.6, 1.4)
        pause = draw.uniform(1.2, 2.0) if draw.random() < 0.01 else 1.0
        return time_of(plan) * drift * pause * draw.uniform(0.95, 1.05)

    timed = Timed(target_of(120), time)
    mix(timed, prompts=25)
    mixed = [step.micros / (120 * MS) for step in timed.run() if step.is_mixed]
    assert len(mixed) > 200
    assert sum(ratio > 1.1 for ratio in mixed) <= 0.05 * len(mixed)
    assert sum(ratio > 1.25 for ratio in mixed) <= 0.02 * len(mixed)
    assert sum(mixed) > 0.7 * len(mixed)


def test_the_strictest_stream_counts() -> None:
    """A batch request may stand still for a second, and beside it another one may not."""
    timed = Timed(target_of(60))
    timed.ask(20, 300, itl_target=400 * MS)
    timed.run(5)
    timed.ask(6000, 1)
    loose = timed.run(25)
    assert max(step.micros for step in loose) > 200 * MS
    timed.ask(20, 100)
    steps = timed.run(30)
    beside = [step for step in steps if step.plan.num_decodes == 2 and step.prefill]
    assert beside
    assert max(step.micros for step in beside) <= 1.1 * 60 * MS


def test_no_stream_asks_for_less_than_the_server_grants() -> None:
    """One request with a target of a microsecond would stop all prefill."""
    timed = Timed(target_of(100))
    timed.ask(20, 300, itl_target=1)
    timed.run(5)
    timed.ask(3000, 1)
    assert max(step.micros for step in timed.run(40)) > 70 * MS


@given(st.floats(0, 1e4), st.floats(0, 100), st.integers(0, 10**6), st.floats(-1e6, 1e9))
def test_tokens_within_a_time(token: float, pair: float, start: int, micros: float) -> None:
    """Against the sum that it inverts: as many as fit, and not one more."""
    costs = (0.0, token, 0.0, 0.0, pair, 0.0, 0.0)

    def time(tokens: int) -> float:
        return token * tokens + pair * (tokens * start + tokens * (tokens + 1) / 2)

    found = tokens_within(costs, micros, start)
    assert found >= 0
    if micros > 0 and found < 10**9:
        assert time(found) <= micros * (1 + 1e-6)
        assert time(found + 1) >= micros * (1 - 1e-6)


def test_offloaded_work_costs_what_was_measured() -> None:
    """Its cost in tokens was guessed from the model's sizes: with a disk of half the speed, steps took twice as long as
    planned."""
    limits = target_of(100)
    timed = Timed(limits, pacing=Pacing(CostPrior(token=100.0, pair=2.0, byte=0.5)))
    pacer = timed.scheduler.state.pacer
    assert pacer is not None
    guessed = offload_of(num_layers=4, pair_cost=9.0, load_cost=9.0)
    priced = pacer.budget(BatchBuilder(), limits, ()).priced(guessed, 4)
    assert priced.pair_cost == pytest.approx(2.0 / 100 / 4)
    assert priced.load_cost == pytest.approx(0.5 / 100 / 4 * guessed.page_bytes / 4)
    for number in range(200):
        tokens, loaded = 1 + number % 50, 1000 * (number % 7)
        load = StepLoad(tokens=tokens, pairs=100 * (number % 11), loaded=loaded)
        pacer.cost.observe(Regime.PREFILL, load, 1000 + 100 * tokens + 2 * load.pairs + 1.0 * loaded)
    slower = pacer.budget(BatchBuilder(), limits, ()).priced(guessed, 4)
    assert slower.load_cost == pytest.approx(2 * priced.load_cost, rel=0.2)


def test_a_step_that_only_begins_to_read_says_nothing_of_the_machine() -> None:
    """The first slice of an offloaded chunk holds no work. Its time is that of the loop, and of no step."""
    pacer = Timed(target_of(100)).scheduler.state.pacer
    assert pacer is not None
    batch = BatchBuilder()
    before = pacer.learnt()
    pacer.planned(0, batch, 100 * MS, 0, has_streams=False)
    pacer.ended(0, 3)
    assert pacer.learnt() == before


@pytest.mark.parametrize("millis", [28, slow(60)])
def test_a_short_prompt_overtakes_a_long_one_where_steps_are_small(millis: int) -> None:
    """A page was the long one's share of every step. Where steps have less than a page, a prompt of 20 tokens waited
    for all of one of 8,000, 961 steps."""
    timed = Timed(target_of(millis))
    for _ in range(4):
        timed.ask(20, 3000)
    timed.run(60)
    long = timed.ask(8000, 1)
    timed.run(40)
    short = timed.ask(20, 1)
    steps = timed.run(12)
    assert max(step.prefill for step in steps) < 32
    assert timed.link.end(short).finish_reason is not None
    taken = [chunk.length for step in steps for chunk in step.plan.chunks if chunk.request_id == long]
    assert sum(taken) >= sum(step.prefill for step in steps) / 2


@examples(8)
@given(st.integers(0, 2**32))
def test_every_prompt_ends_within_its_bound(seed: int) -> None:
    """Streams that never end and a target that leaves nearly nothing: the oldest prompt still gets its quanta."""
    draw = random.Random(seed)
    timed = Timed(target_of(draw.choice([1, 30, 60]), max_partial_prefills=draw.randint(2, 4)))
    for _ in range(3):
        timed.ask(10, 3000)
    timed.run(10)
    lengths = [draw.randint(1, 80) for _ in range(4)]
    ids = [timed.ask(length, 1) for length in lengths]
    bound = steps_to_prefill(timed.limits, 32, lengths)
    timed.run(bound)
    assert all(timed.link.end(each).finish_reason is not None for each in ids)


def test_the_load_is_what_the_plan_holds() -> None:
    """Costs learnt for counts that are not the plan's would be of no use."""
    timed = Timed(target_of(100))
    mix(timed)
    steps = timed.run()
    errors = [
        abs(step.plan.pace.predicted / step.micros - 1) for step in steps[100:] if step.plan.pace and step.is_mixed
    ]
    assert errors
    assert max(errors) < 0.03


@pytest.mark.parametrize(("millis", "chunks"), [(1000, [140]), (72, [128, 12])])
def test_the_end_of_a_prompt_exceeds_the_chunk_size_only_within_the_target(millis: int, chunks: list[int]) -> None:
    """A page more than the chunk size is a page of time more. Steps without streams have twice the target."""
    timed = Timed(target_of(millis, chunked_prefill_size=128, itl_quantile=0.5))
    timed.ask(4000, 1)
    timed.run()
    timed.ask(140, 1)
    assert [step.prefill for step in timed.run()] == chunks


@pytest.mark.parametrize("millis", [45, slow(70), 140])
def test_no_last_chunk_is_planned_beyond_the_target(millis: int) -> None:
    """The end of a prompt may exceed the chunk size by a page rather than leave a tail: a page takes as long as all of
    the target's margin."""
    timed, draw = Timed(target_of(millis, chunked_prefill_size=64)), random.Random(millis)
    for _ in range(3):
        timed.ask(20, 300)
    timed.run(20)
    for _ in range(25):
        timed.ask(draw.randint(60, 100), 2)
        timed.run(4)
    timed.run()
    paces = [(step.plan.pace, step.prefill) for step in timed.runner.steps if step.plan.pace and step.is_mixed]
    assert len(paces) > 25
    assert all(pace.at_quantile <= pace.target + 1 or prefill <= 16 for pace, prefill in paces)
    assert (millis == 140) == any(prefill > 64 for _, prefill in paces)

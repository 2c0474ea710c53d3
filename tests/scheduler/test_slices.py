"""Chunks that are divided among steps, layer by layer, so that streams get their tokens between the layers."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from statistics import median

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slow import examples
from sluice.scheduler.batch import BatchBuilder
from sluice.scheduler.budget import UNLIMITED
from sluice.scheduler.cost import CostPrior, LearntCosts, RegimeCost
from sluice.scheduler.layer_budget import LayerBudget
from sluice.scheduler.pacer import LearntPacing, Pacing
from sluice.scheduler.prefill import PrefillAdder
from sluice.testing.laws.plans import layered, steps_to_prefill
from sluice.types import ITL_AUTO, BatchPlan, FinishReason, Regime, SchedulerLimits
from timed import PAGE, Timed, load_of, load_of_slices
from worlds import limits_of

MS = 1000
LAYERS = 20
TARGET = 150 * MS
STEP, TOKEN, ROW = 40_000.0, 2_000.0, 500.0


def limits(**changed: object) -> SchedulerLimits:
    base = limits_of(chunk=512, running=16, max_partial_prefills=4, itl_target=TARGET)
    return replace(base, sliced_chunk_size=2048, num_layers=LAYERS, **changed)


def machine(layers_cost: float) -> Callable[[BatchPlan], float]:
    """Return a machine on which a token of a long chunk takes `layers_cost` of what one of a short chunk takes, and the
    weights are read once for decodes and whole chunks, and a part of them again for layers."""

    def time(plan: BatchPlan) -> float:
        own, sliced = load_of(plan), load_of_slices(plan)
        reads = STEP * (bool(own.tokens) + sliced.rows)
        return reads + TOKEN * (own.tokens + layers_cost * sliced.tokens) + ROW * own.rows

    return time


@dataclass
class Beside(Timed):
    """Streams, and prompts beside them."""

    prompts: list[int] = field(default_factory=list)


def beside_streams(layers_cost: float, **changed: object) -> Beside:
    """Four streams, and two prompts of 4,000 tokens that arrive when the machine is known."""
    timed = Beside(limits(**changed), machine(layers_cost))
    for _ in range(4):
        timed.ask(32, 1500)
    timed.run(20)
    until_read(timed, timed.ask(3000, 1))
    timed.prompts = [timed.ask(4000, 1), timed.ask(4000, 1)]
    return timed


def has_ended(timed: Timed, request_id: int) -> bool:
    return any(output.request_id == request_id and output.finish_reason is not None for output in timed.link.outputs)


def until_read(timed: Timed, request_id: int) -> float:
    """Run until a prompt is read. Return the seconds."""
    began = timed.clock.now()
    while not has_ended(timed, request_id):
        timed.run(1)
    return timed.clock.now() - began


def test_a_long_chunk_gives_way_to_streams_between_its_layers() -> None:
    timed = beside_streams(0.6)
    steps = timed.run(200)
    with_layers = [step for step in steps if layered(step.plan)]
    assert len(with_layers) > 100
    assert all(step.plan.num_decodes == 4 for step in with_layers)
    assert median(part.chunk.length for step in with_layers for part in layered(step.plan)) > 1000
    late = [step for step in with_layers[20:] if step.micros > 1.05 * TARGET]
    assert len(late) <= len(with_layers) // 20
    assert median(step.micros for step in with_layers) > 0.5 * TARGET, "the time is used"


@pytest.mark.parametrize("target", [TARGET, ITL_AUTO])
def test_prompts_are_read_sooner_than_in_whole_chunks_of_the_same_gap(target: int) -> None:
    sliced, whole = beside_streams(0.6, itl_target=target), beside_streams(0.6, itl_target=target)
    whole.scheduler.limits = replace(whole.scheduler.limits, sliced_chunk_size=0)
    assert until_read(sliced, sliced.prompts[1]) < 0.8 * until_read(whole, whole.prompts[1])


def test_whole_chunks_are_taken_where_layers_take_longer() -> None:
    """Reading the weights twice is not worth it where short chunks are as fast: that is tried, and given up."""
    timed = beside_streams(1.5)
    tried = [step for step in timed.runner.steps if layered(step.plan)]
    assert 10 < len(tried) <= 3 * LAYERS
    steps = timed.run(100)
    assert not any(layered(step.plan) for step in steps)
    assert all(step.is_mixed for step in steps)


def test_layers_are_taken_where_no_whole_chunk_keeps_to_the_target() -> None:
    """A step with any chunk reads weights by slower kernels than one of decodes, and is late at once."""

    def time(plan: BatchPlan) -> float:
        own, sliced = load_of(plan), load_of_slices(plan)
        has_chunk = own.tokens > plan.num_decodes
        return 20_000 * (1 + 9 * has_chunk) + 1_500 * own.tokens + 20_000 * sliced.tokens

    timed = Beside(limits(), time)
    for _ in range(4):
        timed.ask(32, 1500)
    timed.run(20)
    until_read(timed, timed.ask(300, 1))
    timed.ask(4000, 1)
    steps = timed.run(100)
    assert sum(bool(layered(step.plan)) for step in steps) > 80
    assert sum(step.micros > 1.05 * TARGET for step in steps) < 20


def test_a_short_prompt_runs_between_the_layers_of_a_long_chunk() -> None:
    timed = beside_streams(0.6)
    timed.run(30)
    assert timed.scheduler.state.requests[timed.prompts[0]].sliced is not None
    began, short = timed.clock.now(), timed.ask(40, 1)
    assert until_read(timed, short) < 6 * TARGET / 1e6
    assert not has_ended(timed, timed.prompts[0])
    assert timed.clock.now() > began


def test_a_prompt_that_is_not_short_shares_with_the_long_one() -> None:
    """It becomes a sliced chunk of its own, and each of the two has about half of the steps."""
    timed = beside_streams(0.6)
    timed.run(30)
    long = timed.prompts[0]
    shorter = timed.ask(500, 1)
    steps = timed.run(40)
    turns = [{part.chunk.request_id for part in layered(step.plan)} for step in steps]
    assert sum(shorter in each for each in turns) > 5
    assert sum(long in each for each in turns) > 10


def test_prompts_of_equal_length_finish_in_order() -> None:
    timed = beside_streams(0.6)
    first, second = timed.prompts
    until_read(timed, first)
    state = timed.scheduler.state
    assert not has_ended(timed, second)
    assert state.requests[second].computed <= 512, "what the first leaves of a step is not for the second"


def test_what_waits_is_told_apart_by_regime() -> None:
    timed = beside_streams(0.6)
    regimes = {step.plan.pace.regime for step in timed.run(40) if step.plan.pace is not None and layered(step.plan)}
    assert regimes == {Regime.SLICED}


def test_a_lonely_prompt_is_read_in_few_steps() -> None:
    """Without streams a step may take twice the target, and there is nothing to give way to."""
    timed = Timed(limits(), machine(0.6))
    prompt = timed.ask(4000, 1)
    timed.run()
    assert has_ended(timed, prompt)
    assert max(step.micros for step in timed.runner.steps) < 2.5 * TARGET


def test_layers_that_seem_to_cost_nothing() -> None:
    """Where all of their steps took the same time, nothing of it was their tokens'. The scheduler divided by zero."""
    flat = RegimeCost().learnt()._replace(num_steps=100, factors=(1.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0))
    learnt = LearntPacing(LearntCosts(CostPrior(), dict.fromkeys(Regime, flat)), largest_mixed=512, largest=512)
    timed = Timed(limits(), machine(0.5), pacing=Pacing(learnt=learnt))
    timed.ask(32, 500)
    timed.run(5)
    long = timed.ask(4000, 1)
    steps = []
    while not has_ended(timed, long):
        steps += timed.run(1)
    assert any(step.plan.slices for step in steps)


def test_an_aborted_chunk_leaves_its_pages() -> None:
    timed = beside_streams(0.6)
    timed.run(30)
    request = timed.scheduler.state.requests[timed.prompts[0]]
    free = timed.scheduler.state.kv.available
    assert request.sliced is not None
    slot = request.slot
    timed.scheduler.abort(request.id, FinishReason.ABORT)
    (step, *_) = timed.run(1)
    assert timed.scheduler.state.kv.available > free
    assert step.plan.given_up == (slot,) or slot in [new.slot for new in step.plan.new_slots], "a runner drops the rest"
    assert not any(step.plan.given_up for step in timed.run(5))


@examples(8)
@given(st.integers(0, 2**32))
def test_every_prompt_ends_within_its_bound(seed: int) -> None:
    """Streams that never end and a target that leaves nearly nothing: the oldest prompt still gets its layers."""
    draw = random.Random(seed)
    target = draw.choice([1, 45, 60]) * MS
    timed = Timed(limits(itl_target=target, max_partial_prefills=draw.randint(2, 4)), machine(0.6))
    timed.limits = timed.scheduler.limits = replace(timed.limits, num_layers=4)
    for _ in range(3):
        timed.ask(10, 3000)
    timed.run(10)
    lengths = [draw.randint(1, 120) for _ in range(4)]
    ids = [timed.ask(length, 1) for length in lengths]
    timed.run(steps_to_prefill(timed.limits, PAGE, lengths))
    assert all(has_ended(timed, each) for each in ids)


def test_forced_tokens_are_never_divided() -> None:
    """They belong to streams, which wait for them."""
    timed = beside_streams(0.6)
    for step in timed.run(100):
        for part in layered(step.plan):
            assert part.chunk.request_id in timed.prompts


def test_the_last_layers_of_a_prompt_reserve_its_output() -> None:
    """Under `ratio` a prompt is counted without its output until all of it is planned."""
    timed = beside_streams(0.6, reserve="ratio")
    state = timed.scheduler.state
    asked = timed.ask(300, 800)
    while asked not in state.requests or state.requests[asked].sliced is None:
        timed.run(1)
    request = state.requests[asked]
    while request.sliced is not None:
        adder = adder_with_layers(timed, request.id)
        kept = adder.reserved.total()
        adder.reserved.recount()
        assert kept == adder.reserved.total()
    assert request.id in state.decoding


def adder_with_layers(timed: Timed, request_id: int) -> PrefillAdder:
    """Return an adder that has counted what is reserved, and has planned layers of a request since."""
    state = timed.scheduler.state
    adder = PrefillAdder(state, timed.limits, BatchBuilder())
    adder.reserved.total()
    adder.add_partial(state.requests[request_id])
    return adder


def test_layers_behind_a_whole_chunk_have_what_it_leaves() -> None:
    """The least prefill of a step is for its first prompt, however much the step holds when layers are asked for."""
    timed = beside_streams(0.6)
    timed.run(30)
    state, batch = timed.scheduler.state, BatchBuilder()
    long = state.requests[timed.prompts[0]]
    assert state.pacer is not None
    assert long.sliced is not None
    for request in state.decoding.values():
        batch.promise(request, 1)
    budget = LayerBudget(state.pacer.budget(batch, timed.limits, state.streams()), timed.limits)
    short = long.sliced.chunk._replace(length=20, token_ids=(1,) * 20)
    assert budget.layers(short, LAYERS, UNLIMITED, UNLIMITED, least=0) == LAYERS
    batch.promise(long, 400)
    budget = LayerBudget(state.pacer.budget(batch, timed.limits, state.streams()), timed.limits)
    assert budget.layers(short, LAYERS, UNLIMITED, UNLIMITED, least=0) == 0


@pytest.mark.parametrize("partial", [1, 4])
def test_the_step_that_begins_a_chunk_has_as_many_layers_as_fit(partial: int) -> None:
    timed = beside_streams(0.6, max_partial_prefills=partial)
    until_read(timed, timed.prompts[1])
    timed.run(1)
    asked = timed.ask(400, 1)
    until_read(timed, asked)
    own = [part for step in timed.runner.steps for part in layered(step.plan) if part.chunk.request_id == asked]
    counts = [part.stop - part.first for part in own]
    assert len(counts) > 2
    assert counts[0] >= max(counts) - 1


@pytest.mark.parametrize("bound", [{"max_batch_tokens": 40}, {"chunked_prefill_size": 36}])
def test_layers_cost_no_more_tokens_than_a_step_may_have(bound: dict[str, int]) -> None:
    timed = Timed(limits(**bound), machine(0.6))
    for _ in range(4):
        timed.ask(10, 300)
    timed.run(20)
    until_read(timed, timed.ask(2000, 1))
    with_layers = [step.plan for step in timed.runner.steps if layered(step.plan)]
    assert len(with_layers) > 16
    assert max(load_of(plan).tokens + load_of_slices(plan).tokens for plan in with_layers) <= 40

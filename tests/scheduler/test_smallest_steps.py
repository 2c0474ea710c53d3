"""The smallest step: what an ITL target means near and below what a machine can do, and how chunks grow from there."""

from __future__ import annotations

import copy
import random
from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slow import examples
from sluice.scheduler.cost import CostPrior, StepLoad
from sluice.scheduler.pacer import Pacer, Pacing
from sluice.scheduler.scheduler import Scheduler
from sluice.types import Regime, SchedulerLimits
from timed import MACHINE, PAGE, Timed, time_of
from worlds import limits_of

MS = 1000
ALONE = 20_000 + 4 * (900 + 150)
"""Microseconds of a step of four decodes, without what their contexts add: up to 400 in these tests."""
QUANTUM = 8 * 900 + 150
"""Of a quantum beside them."""


def limits_with(micros: int) -> SchedulerLimits:
    return replace(limits_of(chunk=1024, running=16, max_partial_prefills=4), itl_target=micros)


def beside_streams(micros: int, steps: int = 60) -> Timed:
    """Serve four streams and a long prompt, for so many steps."""
    timed = Timed(limits_with(micros))
    for _ in range(4):
        timed.ask(20, 400)
    timed.run(20)
    timed.ask(6000, 1)
    timed.run(steps)
    return timed


def prefill_by_target(scheduler: Scheduler, pacing: Pacing, targets: list[int]) -> list[int]:
    """Return the prefill that the next step would have with each target."""
    found = []
    for target in targets:
        clone = copy.deepcopy(scheduler)
        clone.state.pacer = Pacer(limits_with(target), PAGE, pacing)
        plan = clone.schedule()
        assert plan is not None
        found.append(plan.num_tokens - plan.num_decodes)
    return found


@examples(30)
@given(st.integers(0, 2**32))
def test_prefill_never_falls_when_the_target_rises(seed: int) -> None:
    """Whatever was learnt, sense or nonsense. Below what was held to be feasible, prefill got a quarter of the time of
    the decodes, and just above it nearly nothing: a lower target gave longer gaps."""
    draw = random.Random(seed)
    timed = beside_streams(draw.choice([20, 32, 60, 200]) * MS, steps=draw.randint(1, 30))
    pacer = timed.scheduler.state.pacer
    assert pacer is not None
    for _ in range(draw.choice([0, 3, 60])):
        load = StepLoad(*(draw.choice([0, 1, 50, 5000]) for _ in range(6)))
        pacer.cost.observe(draw.choice(list(Regime)), load, draw.uniform(1000, 1e6))
    targets = sorted(round(10 ** draw.uniform(2, 6)) for _ in range(20))
    prefill = prefill_by_target(timed.scheduler, Pacing(learnt=pacer.learnt()), targets)
    assert prefill[0] >= 8
    assert all(one <= other for one, other in pairwise(prefill))


def test_a_lower_target_never_means_longer_steps() -> None:
    """Across the point where the target becomes infeasible. There is no jump, either."""
    times, prefill = [], []
    for micros in range(ALONE - 8 * MS, ALONE + 6 * QUANTUM, 4 * MS):
        late = [step for step in beside_streams(micros).runner.steps[50:] if step.is_mixed]
        times.append(sum(step.micros for step in late) / len(late))
        prefill.append(sum(step.prefill for step in late) / len(late))
    assert all(one <= other * 1.01 for one, other in pairwise(times))
    assert all(other <= one + 8 for one, other in pairwise(prefill))
    assert prefill[0] == 8
    assert prefill[-1] >= 16


@pytest.mark.parametrize(("micros", "is_infeasible"), [(ALONE + QUANTUM - 1000, True), (ALONE + QUANTUM + 3500, False)])
def test_a_target_is_infeasible_if_the_smallest_step_takes_longer(micros: int, is_infeasible: bool) -> None:
    """Decodes alone are within both. A step that could not be kept within the target counted as late, and decodes
    alone were said to exceed the target."""
    steps = beside_streams(micros).runner.steps[50:]
    said = {step.plan.pace.is_infeasible for step in steps if step.plan.pace is not None and step.is_mixed}
    assert said == {is_infeasible}
    decodes = [step for step in beside_streams(micros, steps=0).runner.steps[-5:] if not step.prefill]
    assert decodes
    assert not any(step.plan.pace.is_infeasible for step in decodes if step.plan.pace is not None)


def test_a_target_that_decodes_alone_exceed_is_infeasible_without_prefill_too() -> None:
    """The server said nothing until a prompt came."""
    timed = beside_streams(ALONE - 2000, steps=0)
    paces = [step.plan.pace for step in timed.runner.steps[-5:] if not step.prefill]
    assert paces
    assert all(pace is not None and pace.is_infeasible for pace in paces)


def test_prefill_has_a_share_of_large_steps_of_decodes() -> None:
    """Where a token costs next to nothing, a quantum in each step would keep a long prompt waiting for minutes."""
    machine = (50_000.0, 20.0, 20.0, 0.01, 0.001, 0.001, 0.0)
    timed = Timed(limits_with(1), lambda plan: time_of(plan, machine))
    for _ in range(4):
        timed.ask(20, 400)
    timed.run(20)
    timed.ask(8000, 1)
    late = [step for step in timed.run(60) if step.is_mixed][15:30]
    assert late
    assert all(1.1 * 50 * MS < step.micros < 1.3 * 50 * MS for step in late)


@pytest.mark.parametrize("decodes", [0, 5])
def test_no_chunk_stays_small_because_all_are(decodes: int) -> None:
    """A token was believed to cost a hundred times as much as a step, and is cheap. Steps of 8 tokens and one stream
    fit that as well, and it was never found out."""
    machine, wrong = (60_000.0, 100.0, 100.0, 0.1, 0.01, 0.001, 0.0), CostPrior(20.0, 2000.0, 10.0, 0.01, 0.001, 0.001)
    timed = Timed(limits_with(80 * MS), lambda plan: time_of(plan, machine), pacing=Pacing(wrong))
    timed.ask(9, 600)
    timed.run(2 + decodes)
    timed.ask(6000, 1)
    mixed = [step for step in timed.run(160) if step.is_mixed]
    assert {step.prefill for step in mixed[:30]} == {8}
    assert min(step.prefill for step in mixed[110:150]) >= 32
    assert max(step.micros for step in mixed) <= 1.05 * 80 * MS


def test_two_quanta_are_tried_seldom() -> None:
    """Where one is all that fits, each step that tries two is late."""
    steps = [step for step in beside_streams(ALONE + QUANTUM + 3500, steps=300).runner.steps if step.is_mixed]
    assert sum(step.prefill > 8 for step in steps) <= len(steps) / 32


def test_mixed_steps_go_by_what_other_steps_have_shown() -> None:
    """The first prompt beside streams was planned by guesses, although what a token and a decode cost was known."""
    timed = Timed(limits_with(70 * MS), pacing=Pacing(CostPrior(1.0, 1000.0, 1.0, 0.1, 0.1, 0.001)))
    timed.ask(900, 200)
    timed.run(60)
    pacer = timed.scheduler.state.pacer
    assert pacer is not None
    timed.ask(500, 1)
    timed.run(5)
    load = StepLoad(1, 1, 1000).with_chunk(0, 40)
    step, *rest = MACHINE
    right = step + sum(cost * count for cost, count in zip(rest, load, strict=True))
    assert pacer.cost.fitted(Regime.MIXED, load) == pytest.approx(right, rel=0.15)

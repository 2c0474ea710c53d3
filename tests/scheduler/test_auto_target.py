"""An ITL target that follows the time of decodes (`--itl-target auto`)."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import pytest

from sluice.scheduler.cost import LearntCosts
from sluice.scheduler.pacer import Pacing, two_digits
from sluice.types import ITL_AUTO, BatchPlan, SchedulerLimits
from timed import Taken, Timed, time_of
from worlds import limits_of

AUTO: SchedulerLimits = replace(limits_of(chunk=512, running=32, max_partial_prefills=4), itl_target=ITL_AUTO)


def targets_of(steps: list[Taken]) -> list[int]:
    return [step.plan.pace.target for step in steps if step.plan.pace is not None]


def test_prompts_slow_streams_to_a_quarter_and_no_further() -> None:
    """Four steps of the decodes that run, within the quarter by which a steady target may be off."""
    timed = Timed(AUTO)
    for _ in range(4):
        timed.ask(20, 400)
    timed.run(30)
    alone = timed.runner.steps[-1].micros
    timed.ask(6000, 1)
    mixed = [step for step in timed.run(60) if step.is_mixed]
    assert all(3.2 * alone < target < 5.1 * alone for target in targets_of(mixed))
    assert max(step.micros for step in mixed) <= 5.1 * alone
    assert max(step.micros for step in mixed[20:]) >= 2.5 * alone


def test_the_target_is_steady() -> None:
    """Contexts grow and requests come and go: a target that followed each would make chunks of all sizes."""
    timed = Timed(AUTO)
    for _ in range(4):
        timed.ask(20, 600)
    timed.run(20)
    for length in range(12):
        timed.ask(300 + 50 * length, 20)
        timed.run(15)
    beside = [step for step in timed.runner.steps[20:] if step.plan.num_decodes]
    assert len(set(targets_of(beside))) <= 3


def test_before_any_decode_chunks_are_those_of_a_server_without_a_target() -> None:
    """The time of decodes was guessed, by which a first prompt took a step of seconds, or hundreds of a few tokens."""
    timed = Timed(AUTO)
    timed.ask(2000, 1)
    steps = timed.run()
    prefill = [step.prefill for step in steps]
    assert prefill[:5] == [16, 32, 64, 128, 128]
    assert max(prefill) <= 128 + 32
    assert set(targets_of(steps)) == {0}
    totals = timed.engine.meter.totals().itl
    assert totals is not None
    assert not any(totals.late)


def test_a_server_that_is_busy_from_the_first_step_on_has_a_target() -> None:
    """It never ran decodes alone, so it kept the chunks of a server without a target, whatever these took."""
    timed = Timed(AUTO)
    timed.ask(20, 400)
    timed.run(2)
    timed.ask(60_000, 1)
    steps = timed.run(100)
    assert all(step.is_mixed for step in steps[1:])
    decodes = time_of(replace(steps[-1].plan, chunks=steps[-1].plan.chunks[:1]))
    assert targets_of(steps)[-1] == pytest.approx(4 * decodes, rel=0.4)
    assert max(step.micros for step in steps[60:]) <= 6 * decodes


def test_more_streams_have_a_longer_target() -> None:
    """Their decodes take longer, and the first ones' target would leave nothing to prefill, or be infeasible."""
    timed = Timed(AUTO)
    timed.ask(20, 600)
    timed.run(20)
    few = targets_of(timed.run(5))[-1]
    for _ in range(25):
        timed.ask(20, 600)
    timed.run(80)
    steps = timed.run(20)
    assert targets_of(steps)[-1] > 1.5 * few
    assert not any(step.plan.pace.is_infeasible for step in steps if step.plan.pace is not None)


def test_a_slower_machine_has_a_longer_target() -> None:
    """It is relative: a neighbour that stays is no reason to starve prompts."""
    factor = 1.0

    def time(plan: BatchPlan) -> float:
        return factor * time_of(plan)

    timed = Timed(AUTO, time)
    timed.ask(20, 2000)
    timed.run(50)
    before = targets_of(timed.run(1))[0]
    factor = 3.0
    after = targets_of(timed.run(400))
    assert after[-1] == pytest.approx(3 * before, rel=0.3)
    assert all(one <= other for one, other in pairwise(after))


def test_a_known_machine_has_its_target_at_once() -> None:
    """With `--cost-model` nothing need be seen first."""
    timed = Timed(AUTO)
    timed.ask(20, 100)
    timed.run()
    pacer = timed.scheduler.state.pacer
    assert pacer is not None
    learnt = pacer.learnt()
    assert isinstance(learnt.costs, LearntCosts)
    again = Timed(AUTO, pacing=Pacing(learnt=learnt))
    again.ask(2000, 1)
    assert all(target > 0 for target in targets_of(again.run()))


@pytest.mark.parametrize(("micros", "rounded"), [(0.2, 1), (7.4, 7), (99.4, 99), (123.0, 120), (98_765.0, 99_000)])
def test_targets_have_two_digits(micros: float, rounded: int) -> None:
    assert two_digits(micros) == rounded

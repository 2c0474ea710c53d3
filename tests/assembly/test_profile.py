"""What an engine's start measures, for chunks that take the same time."""

from __future__ import annotations

import pytest

from sluice.assembly.profile import profiled
from sluice.engine.clock import VirtualClock
from sluice.scheduler.cost import CostPrior
from sluice.scheduler.pacer import Pacing
from sluice.scheduler.setup import SchedulerSetup
from sluice.testing import ShadowRunner
from sluice.types import CHUNKS_BY_TIME
from timed import MACHINE, PAGE, TimedRunner, time_of
from worlds import limits_of


@pytest.mark.parametrize(("pages", "longest"), [(400, 100_000), (400, 3000), (60, 100_000)])
def test_the_first_chunks_are_sized_by_a_profile(pages: int, longest: int) -> None:
    """The position was that of the model's sizes until the engine had served prompts."""
    limits = limits_of(chunk=512, dynamic_chunking=CHUNKS_BY_TIME, dynamic_chunking_smoothing=0.75)
    setup = SchedulerSetup(limits, pages, PAGE, pacing=Pacing(CostPrior(token=90.0, pair=0.1)))
    clock = VirtualClock()
    runner = TimedRunner(ShadowRunner(page_size=PAGE, vocab_size=2), clock, time_of)
    pacing = profiled(setup, runner, clock, longest)
    sizer = SchedulerSetup(limits, pages, PAGE, pacing=pacing).build().state.sizer
    assert sizer is not None
    # With a prompt of 1,900 tokens, there are too few steps that show it.
    expected = 900.0 if pages == 60 else MACHINE[1] / MACHINE[4]
    assert sizer.doubles_at == pytest.approx(expected, rel=0.15)
    assert max(step.plan.num_tokens for step in runner.steps) == 512
    assert all(step.plan.step < 0 for step in runner.steps), "ranks refuse a step that comes twice"

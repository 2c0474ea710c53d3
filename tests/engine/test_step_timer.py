"""What a step took, as the scheduler is told: from the end of the step before it, less what nothing waited for."""

from __future__ import annotations

from dataclasses import replace

import pytest

from sluice.engine.trace import StepTimes
from sluice.types import BatchPlan, BatchResult
from timed import Timed, time_of
from worlds import limits_of


class Micros:
    """A trace sink that keeps what each step was measured to take, beside what it took."""

    latest = None

    def __init__(self) -> None:
        self.pairs: list[tuple[int, float]] = []

    def ended(self, plan: BatchPlan, result: BatchResult | None, times: StepTimes) -> None:
        self.pairs.append((times.micros, time_of(plan)))

    def close(self) -> None:
        """Keep them."""


@pytest.mark.parametrize(("depth", "lookahead"), [(1, 0), (2, 0), (2, 1), (3, 2)])
def test_an_idle_minute_is_part_of_no_step(depth: int, lookahead: int) -> None:
    """The first step after a pause seemed to take a minute, and chunks were a quantum for the next hundred. With
    several steps in flight the launch of another one is not counted twice, either."""
    limits = limits_of(chunk=256, running=8, max_partial_prefills=4, lookahead=lookahead)
    timed, micros = Timed(replace(limits, itl_target=100_000)), Micros()
    timed.engine.depth, timed.engine.trace = depth, micros
    for _ in range(3):
        timed.ask(20, 4)
        timed.ask(150, 6)
        timed.run()
        timed.clock.advance(60.0)
    assert len(micros.pairs) > 20
    assert all(measured == pytest.approx(took, abs=2) for measured, took in micros.pairs)

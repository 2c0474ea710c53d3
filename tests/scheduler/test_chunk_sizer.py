"""Chunks that take the same time, on a machine whose coefficients are known only by the time of its steps."""

from __future__ import annotations

import pytest

from sluice.scheduler.cost import CostPrior
from sluice.scheduler.pacer import LearntPacing, Pacing
from sluice.types import CHUNKS_BY_TIME
from timed import MACHINE, PAGE, Taken, Timed, time_of
from worlds import limits_of

CHUNK = 512
DOUBLES_AT = MACHINE[1] / MACHINE[4]


def timed(smoothing: float = 1.0, running: int = 40, prior: CostPrior | None = None, chunk: int = CHUNK) -> Timed:
    limits = limits_of(
        chunk=chunk, running=running, dynamic_chunking=CHUNKS_BY_TIME, dynamic_chunking_smoothing=smoothing
    )
    return Timed(limits, pacing=Pacing(prior or CostPrior()))


def chunks(steps: list[Taken]) -> list[tuple[int, int]]:
    """Start and length of each chunk of a prompt that is not its last."""
    found = [chunk for step in steps for chunk in step.plan.chunks[step.plan.num_decodes :]]
    return [(chunk.start, chunk.length) for chunk in found if not chunk.samples]


@pytest.mark.parametrize("factor", [0.4, 1.0, 2.5])
def test_chunks_come_to_take_the_same_time(factor: float) -> None:
    """The position was computed from the model's sizes, and was wrong by what a kernel's speed differs from others."""
    sizer = timed(prior=CostPrior(token=90.0, pair=90.0 / DOUBLES_AT / factor))
    for _ in range(3):
        sizer.ask(5000, 1)
    sizer.run()
    assert sizer.scheduler.state.sizer is not None
    assert sizer.scheduler.state.sizer.doubles_at == pytest.approx(DOUBLES_AT, rel=0.1)
    sizer.ask(4000, 1)
    steps = [step for step in sizer.run() if not step.plan.chunks[-1].samples and step.prefill > CHUNK // 4]
    assert len(steps) >= 5
    first = steps[0].micros
    assert all(0.72 * first <= step.micros <= 1.05 * first for step in steps), [step.micros / first for step in steps]


def test_a_profile_is_known_from_the_first_step() -> None:
    before = timed(prior=CostPrior(token=90.0, pair=90.0 / DOUBLES_AT / 2.5))
    before.ask(5000, 1)
    before.run()
    assert before.scheduler.state.sizer is not None
    learnt = LearntPacing(before.scheduler.state.sizer.learnt(), 0, 0)
    after = Timed(before.limits, pacing=Pacing(CostPrior(), learnt=learnt))
    assert after.scheduler.state.sizer is not None
    assert after.scheduler.state.sizer.doubles_at == pytest.approx(DOUBLES_AT, rel=0.15)


def test_chunks_keep_to_tiles_a_quarter_and_tails() -> None:
    sizer = timed(smoothing=0.75)
    for _ in range(2):
        sizer.ask(16_000, 1)
    found = chunks(sizer.run())
    assert {length % 64 for _, length in found} == {0}
    assert min(length for _, length in found) >= CHUNK // 4
    shallow, deep = (max(length for start, length in found if start // 1000 == at) for at in (0, 15))
    assert shallow == CHUNK
    assert deep < CHUNK / 2


def test_the_last_chunk_takes_a_small_tail() -> None:
    """A tail of a page and a few tokens had a step of its own, which reads all the weights."""
    sizer = timed(chunk=1024)
    deep = 6000
    sizer.ask(deep, 1)
    lengths = [chunk.length for step in sizer.run() for chunk in step.plan.chunks]
    assert lengths[-1] >= 1024 // 16


def test_decodes_count_with_the_time_that_they_take() -> None:
    """Beside thirty streams of long contexts a step took a third longer than the first chunk alone."""
    sizer = timed()
    for _ in range(30):
        sizer.ask(900, 400)
    sizer.run(90)
    sizer.ask(6000, 1)
    steps = [step for step in sizer.run(40) if step.is_mixed and step.prefill > CHUNK // 4 + PAGE]
    assert steps
    alone = MACHINE[0] + CHUNK * MACHINE[1] + CHUNK * CHUNK / 2 * MACHINE[4]
    assert max(time_of(step.plan) for step in steps if not step.plan.chunks[-1].samples) < 1.05 * alone
    assert all(step.plan.num_decodes == 30 for step in steps)


def test_what_is_learnt_stays_near_the_start() -> None:
    """Where all steps take the same time, the times fit a machine on which tokens cost nothing."""
    machine = Timed(timed().limits, time=lambda _: 50_000.0, pacing=Pacing(CostPrior(token=90.0, pair=0.04)))
    for _ in range(30):
        machine.ask(2000, 1)
    machine.run()
    assert machine.scheduler.state.sizer is not None
    assert 2250 / 4 <= machine.scheduler.state.sizer.doubles_at <= 2250 * 4

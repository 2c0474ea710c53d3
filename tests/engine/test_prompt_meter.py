"""How far prompts are read, and how long the rest should take, on plans whose times are made up."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from sluice.engine.prompt_meter import PromptMeter, PromptProgress
from sluice.testing import resolved
from sluice.types import BatchPlan, Chunk, ChunkSlice, FinishReason, NewSlot, Output, Submit

TOTAL = 1000


def chunk(start: int, length: int, request_id: int = 7) -> Chunk:
    return Chunk(request_id, 0, start, length, tuple(range(length)), (), samples=start + length == TOTAL)


def plan(*chunks: Chunk, begins: int | None = None, slices: tuple[ChunkSlice, ...] = ()) -> BatchPlan:
    new = NewSlot(0, Submit(begins, (), resolved()), TOTAL) if begins is not None else None
    return BatchPlan(step=0, new_slots=() if new is None else (new,), chunks=chunks, slices=slices)


def read_until(meter: PromptMeter, until: int, seconds: Callable[[float], float], *, start: int = 0) -> None:
    """Read a prompt in chunks of 100 on a machine that takes `seconds(x)` up to token x."""
    for first in range(start, until, 100):
        step = plan(chunk(first, 100), begins=7 if first == start else None)
        meter.planned(step, seconds(first))
        meter.ended(step, seconds(first + 100))


@pytest.mark.parametrize(
    "seconds",
    [lambda x: 0.01 * x, lambda x: 1e-5 * x * x, lambda x: 0.004 * x + 2e-5 * x * x],
    ids=["by the token", "by the pair", "both"],
)
def test_the_rest_takes_what_its_place_in_the_prompt_says(seconds: Callable[[float], float]) -> None:
    """A long prompt slows down as it is read: by its rate so far, half of its time would be missing at the end."""
    meter = PromptMeter()
    read_until(meter, 600, seconds, start=200)
    (found,) = meter.progress()
    assert found[:3] == (7, 600, TOTAL)
    assert found.seconds_left == pytest.approx(seconds(TOTAL) - seconds(600))


def test_a_prompt_that_speeds_up_is_not_expected_to_end_before_it_began() -> None:
    """A fit without bounds says less than nothing where the first steps were the slow ones."""
    meter = PromptMeter()
    read_until(meter, 600, lambda x: x**0.5)
    left = meter.progress()[0].seconds_left
    assert left is not None
    assert left > 0


def test_a_step_tells_nothing_before_it_has_ended() -> None:
    meter = PromptMeter()
    assert meter.progress() == ()
    meter.planned(plan(chunk(200, 100), begins=7), 0.0)
    assert meter.progress() == (PromptProgress(7, 200, TOTAL, None),)


def test_a_part_of_an_offloaded_chunk_counts() -> None:
    """A chunk behind a million tokens takes many steps, in which the bar would stand still."""
    meter = PromptMeter()
    for stop in (0, 4, 6):
        part = ChunkSlice(chunk(400, 200), (), 0, (), max(0, stop - 4), stop, 8)
        step = plan(begins=7 if not stop else None, slices=(part,))
        meter.planned(step, stop)
        meter.ended(step, stop + 1)
    assert meter.progress()[0][:3] == (7, 550, TOTAL)


def test_what_is_read_or_over_is_forgotten() -> None:
    """Entries that stay are shown for ever, and fill the memory of the engine."""
    meter = PromptMeter()
    read_until(meter, TOTAL, lambda x: x)
    assert meter.progress() == ()
    read_until(meter, 500, lambda x: x)
    meter.sent([Output(7, 0, (1,), 0)])
    assert len(meter.progress()) == 1
    meter.sent([Output(7, 0, (), 0, FinishReason.ABORT)])
    assert meter.progress() == ()


def test_a_request_that_was_preempted_begins_again() -> None:
    meter = PromptMeter()
    read_until(meter, 500, lambda x: x)
    meter.planned(plan(chunk(100, 100), begins=7), 9.0)
    assert meter.progress() == (PromptProgress(7, 100, TOTAL, None),)


def test_others_in_the_step_count_for_themselves() -> None:
    """Decodes and prompts that end in one step are no part of it."""
    meter = PromptMeter()
    read_until(meter, 100, lambda x: x)
    step = plan(chunk(0, 300, 8), chunk(100, 100), begins=8)
    meter.planned(step, 5.0)
    meter.ended(step, 6.0)
    assert [(each.request_id, each.read) for each in meter.progress()] == [(7, 200), (8, 300)]

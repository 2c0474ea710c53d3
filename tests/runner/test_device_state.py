"""Device state: lazily committed memory, and plans that are refused leave it alone."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from shadow_model import shadow_runner, shadow_shape
from sluice.runner.device_state import DeviceState
from sluice.types import BatchPlan, Chunk, NewSlot, PlanError, SamplingParams, Submit

SHAPE = shadow_shape(num_pages=8, page_size=4)
PARAMS = SamplingParams(temperature=0.0, seed=0)
GOOD = Chunk(1, 0, 0, 5, (1, 2, 3, 4, 5), (2, 3), True)


def plan_of(*chunks: Chunk, new: tuple[int, ...] = (0,), step: int = 3) -> BatchPlan:
    return BatchPlan(step, tuple(NewSlot(slot, Submit(1, (), PARAMS)) for slot in new), chunks)


BAD_PLANS = {
    "empty": (plan_of(), "neither chunks nor copies"),
    "slot too large": (plan_of(GOOD._replace(slot=4), new=(4,)), "slot 4 of 4"),
    "negative slot": (plan_of(GOOD._replace(slot=-1), new=(-1,)), "slot -1"),
    "never filled": (plan_of(GOOD, new=()), "slot 0 was never filled"),
    "two rows of a slot": (plan_of(GOOD, GOOD), "runs a slot twice"),
    "filled twice": (plan_of(GOOD, new=(0, 0)), "fills a slot twice"),
    "no length": (plan_of(GOOD._replace(length=0, token_ids=())), "bounds"),
    "negative start": (plan_of(GOOD._replace(start=-1)), "bounds"),
    "ids two short": (plan_of(GOOD._replace(token_ids=(1, 2, 3))), "3 token ids for length 5"),
    "too many ids": (plan_of(GOOD._replace(token_ids=(1,) * 6)), "6 token ids for length 5"),
    "id outside the vocabulary": (plan_of(GOOD._replace(token_ids=(1, 2, 3, 4, 50))), "token ids 1..50 of 50"),
    "negative id": (plan_of(GOOD._replace(token_ids=(1, 2, 3, 4, -1))), "token ids -1..4 of 50"),
    "page outside the pool": (plan_of(GOOD._replace(new_pages=(2, 8))), "pages 2..8 of 8"),
    "negative page": (plan_of(GOOD._replace(new_pages=(2, -1))), "pages -1..2 of 8"),
    "too few pages": (plan_of(GOOD._replace(new_pages=(2,))), "1 pages do not hold 5 tokens"),
    "row too long": (plan_of(GOOD._replace(new_pages=(0, 1, 2, 3, 4, 5, 6, 7, 0))), "9 pages in a row of 8"),
}


@pytest.mark.parametrize("name", BAD_PLANS)
def test_a_bad_plan_is_refused_and_changes_nothing(name: str) -> None:
    """Half a plan applied would make every later plan of its slots wrong: the next good plan must run as if the bad
    one had never been."""
    bad, message = BAD_PLANS[name]
    runner = shadow_runner(SHAPE)
    with pytest.raises(PlanError, match="plan of step 3 cannot run: ") as caught:
        runner.launch(bad)
    assert message in str(caught.value)
    expected = shadow_runner(SHAPE).launch(plan_of(GOOD)).wait()
    assert runner.launch(plan_of(GOOD)).wait() == expected
    with pytest.raises(PlanError):
        runner.launch(bad if name != "never filled" else plan_of(GOOD._replace(slot=1), new=()))
    grown = plan_of(Chunk(1, 0, 5, 4, (6, 7, 8, 9), (5,), True), new=(), step=4)
    again = shadow_runner(SHAPE)
    again.launch(plan_of(GOOD))
    assert runner.launch(grown).wait() == again.launch(grown).wait()


def test_a_slot_filled_again_starts_empty() -> None:
    runner = shadow_runner(SHAPE)
    runner.launch(plan_of(GOOD)).wait()
    with pytest.raises(PlanError, match="0 pages do not hold 1 tokens"):
        runner.launch(plan_of(Chunk(2, 0, 0, 1, (1,), (), True), step=3))


@pytest.mark.parametrize(("start", "pages"), [(12, (5,)), (5, (5, 6, 7))])
def test_pages_that_leave_a_gap_are_refused(start: int, pages: tuple[int, ...]) -> None:
    """New pages are the last of a row: with a page missing before them, or one too many, a row would read another's."""
    runner = shadow_runner(SHAPE)
    runner.launch(plan_of(GOOD)).wait()
    with pytest.raises(PlanError, match=f"{len(pages)} pages up to token {start + 1} behind a row of 2 pages"):
        runner.launch(plan_of(Chunk(1, 0, start, 1, (6,), pages, True), new=(), step=3))


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_a_large_pool_costs_what_is_touched() -> None:
    """Keeps out zeroing the pool: a server with half the machine's memory as pool must start small."""

    def resident() -> int:
        return int(Path("/proc/self/statm").read_text().split()[1]) * 4096

    mib = 1 << 20
    shape = replace(SHAPE, num_layers=2, num_kv_heads=2, head_dim=64, num_pages=1 << 15, page_size=16, row_pages=64)
    before = resident()
    state = DeviceState(shape)
    assert sum(layer.k.nbytes + layer.v.nbytes for layer in state.kv) == 2048 * mib
    assert resident() - before < 16 * mib
    touched = torch.arange(4096)
    for layer in state.kv:
        layer.store(touched, torch.ones(4096, 2, 64, dtype=torch.float64), torch.ones(4096, 2, 64, dtype=torch.float64))
    assert resident() - before < 128 * mib

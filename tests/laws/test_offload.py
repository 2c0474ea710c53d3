"""The laws of chunks of contexts longer than the device notice the damage they are there for."""

from __future__ import annotations

import pytest

from sluice.testing import ShadowRunner, resolved
from sluice.testing.laws import LawBroken
from sluice.types import Submit, TierLimits
from worlds import Bench, World, limits_of, offload_of


def test_a_chunk_that_begins_again_breaks_law_8() -> None:
    """Its first work items would be computed twice."""
    offload = offload_of(load_cost=7.0)
    world = World(limits_of(chunk=8), num_pages=8, page_size=4, tiers=TierLimits(disk_pages=40), offload=offload)
    bench = Bench.of(world, ShadowRunner(page_size=4, vocab_size=2))
    bench.link.put(Submit(0, (1,) * 60, resolved(3)))
    while (chunk := bench.scheduler.state.open_chunk) is None:
        bench.step()
    chunk.planned = 0
    with pytest.raises(LawBroken, match=r"law 8: .* follows"):
        bench.scheduler.schedule()


def test_a_slice_that_is_planned_before_its_blocks_came_breaks_law_16() -> None:
    """A step that waits for a disk, in the middle of a forward."""
    offload = offload_of(load_cost=1.0, reports_loads=True)
    world = World(limits_of(chunk=8), num_pages=8, page_size=4, tiers=TierLimits(disk_pages=40), offload=offload)
    bench = Bench.of(world, ShadowRunner(page_size=4, vocab_size=2))
    bench.link.put(Submit(0, (1,) * 60, resolved(3)))
    while not bench.scheduler.awaits_report:
        bench.step()
    chunk = bench.scheduler.state.open_chunk
    assert chunk is not None
    chunk.ready = 1
    with pytest.raises(LawBroken, match=r"law 16: .* is planned when 0 work items are ready"):
        bench.scheduler.schedule()

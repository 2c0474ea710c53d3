"""Decodes take turns in a pipeline, over the shadow runner with as many steps in flight as its stages and one more."""

from __future__ import annotations

import itertools
from dataclasses import replace

import pytest

from recording import RecordingRunner
from sluice.engine.messages import Abort, Submit
from sluice.scheduler import passes
from sluice.scheduler.state import SchedulerState
from sluice.testing import resolved
from sluice.testing.laws import LawBroken
from sluice.types import BatchPlan
from worlds import Bench, World, check_ends, limits_of


def plans_of(stages: int, count: int, *, lookahead: int = 0, depth: int = 0) -> list[BatchPlan]:
    """The plans of requests that are admitted together, to their ends."""
    limits = limits_of(chunk=64, running=count, lookahead=lookahead, pipeline_stages=stages)
    world = World(limits, num_pages=400, page_size=2, depth=depth or stages + 1, late=True)
    runner = RecordingRunner(world.shadow())
    bench = Bench.of(world, runner)
    submits = [Submit(each, (each % 2, 1), resolved(12, seed=each)) for each in range(count)]
    bench.link.put(*submits)
    bench.drain(2000)
    check_ends(bench, {submit.request_id: submit for submit in submits})
    return runner.plans


@pytest.mark.parametrize(
    ("stages", "count", "lookahead"), [(4, 8, 0), (4, 9, 0), (4, 6, 1), (2, 7, 0), (8, 40, 1), (3, 2, 0)]
)
def test_decodes_differ_by_one_at_most(stages: int, count: int, lookahead: int) -> None:
    """Eight requests admitted together decoded in one step of four, and the other three had nothing, for ever."""
    plans = plans_of(stages, count, lookahead=lookahead)
    # From the second round of decodes to the first request's last.
    first = next(index for index, plan in enumerate(plans) if plan.num_decodes) + stages
    decodes: dict[int, list[int]] = {}
    for index, plan in enumerate(plans):
        for chunk in plan.chunks[: plan.num_decodes]:
            decodes.setdefault(chunk.request_id, []).append(index)
    last = min(steps[-1] for steps in decodes.values() if len(steps) == max(map(len, decodes.values())))
    steady = [plan.num_decodes for plan in plans[first:last]]
    assert len(steady) >= 2 * stages
    assert max(steady) - min(steady) <= 1, steady
    for steps in decodes.values():
        gaps = [later - earlier for earlier, later in itertools.pairwise(steps) if first <= earlier < later < last]
        assert all(gap <= stages for gap in gaps), gaps


def test_beside_prompts_there_is_a_share_for_one_step_more() -> None:
    """Chunks follow each other without waiting for a token, so the step that follows those of all streams had none."""
    limits = limits_of(chunk=8, batch=24, running=9, pipeline_stages=4)
    bench = Bench.of(World(limits, num_pages=400, page_size=2, depth=5))
    bench.link.put(*(Submit(each, (1,), resolved(100)) for each in range(8)))
    for _ in range(20):
        bench.engine.step()
    bench.link.put(Submit(8, (1,) * 300, resolved(1)))
    counts = []
    for _ in range(30):
        bench.engine.step()
        counts.append(bench.engine.in_flight[-1].plan.num_decodes)
    assert set(counts[6:]) == {1, 2}, counts


def test_planned_ahead_a_stream_leaves_prompts_time_for_its_token() -> None:
    """With a lookahead a lone stream was in two steps that followed each other, so that the first stage waited for the
    last one, and the prompt in the second step too."""
    limits = limits_of(chunk=8, batch=24, running=2, lookahead=1, pipeline_stages=4)
    bench = Bench.of(World(limits, num_pages=400, page_size=2, depth=5, late=True))
    bench.link.put(Submit(0, (1,), resolved(100)))
    for _ in range(4):
        bench.engine.step()
    bench.link.put(Submit(1, (1,) * 300, resolved(1)))
    counts = []
    for _ in range(30):
        bench.engine.step()
        counts.append(bench.engine.in_flight[-1].plan.num_decodes)
    assert all(sum(counts[at : at + 4]) <= 1 for at in range(27)), counts
    assert sum(counts) >= 7


def test_without_a_pipeline_all_decode_in_every_step() -> None:
    plans = plans_of(1, 8)
    assert {plan.num_decodes for plan in plans[1:]} == {8}


def test_who_leaves_makes_room_for_others() -> None:
    """Shares were counted once, so that the steps of those that had left stayed empty."""
    limits = limits_of(chunk=64, running=9, pipeline_stages=2)
    bench = Bench.of(World(limits, num_pages=400, page_size=2, depth=3))
    bench.link.put(*(Submit(each, (1, each), resolved(60)) for each in range(9)))
    for _ in range(10):
        bench.engine.step()
    bench.link.put(*map(Abort, range(6)))
    bench.engine.step()
    counts = []
    for _ in range(9):
        bench.engine.step()
        counts.append(bench.engine.in_flight[-1].plan.num_decodes)
    assert set(counts) == {1, 2}, "three are left"


@pytest.mark.parametrize(
    ("owner", "name", "wrong"),
    [
        (passes, "decodes_in_turn", lambda *_: 100),
        (passes, "decodes_in_turn", lambda *_: 1),
        (SchedulerState, "decoded", lambda *_: None),
    ],
    ids=["all at once", "one at a time", "always the same ones"],
)
def test_law_18_sees_it(monkeypatch: pytest.MonkeyPatch, owner: object, name: str, wrong: object) -> None:
    monkeypatch.setattr(owner, name, wrong)
    with pytest.raises(LawBroken, match="law 18"):
        plans_of(4, 16, depth=1)


def test_a_pipeline_short_of_pages_goes_on() -> None:
    """Those whose turn it was were preempted, and nothing was planned although others could go on."""
    limits = limits_of(chunk=8, running=6, pipeline_stages=3)
    for pages in range(5, 12):
        world = World(replace(limits, max_batch_tokens=20), num_pages=pages, page_size=1, depth=1)
        bench = Bench.of(world)
        submits = [Submit(each, (each % 2,), resolved(4)) for each in range(6)]
        bench.link.put(*submits)
        bench.drain(500)
        check_ends(bench, {submit.request_id: submit for submit in submits})

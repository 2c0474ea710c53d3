"""The laws of drafts notice the damage they are there for."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from sluice.engine.messages import Submit
from sluice.scheduler.state import SchedulerState
from sluice.testing import laws, resolved
from sluice.testing.laws import LawBroken
from sluice.types import BatchPlan, BatchResult
from worlds import Bench, World, limits_of

WORLD = World(
    limits_of(running=2, batch=16, num_draft_tokens=4), num_pages=30, page_size=2, drafts_right=1.0, drafts_eager=True
)


def planned() -> tuple[Bench, BatchPlan, BatchResult]:
    """A step of one row with four drafts, and what it brings."""
    bench = Bench.of(WORLD)
    bench.scheduler.add(Submit(0, (1, 0, 1), resolved(20)))
    bench.engine.step()
    plan = bench.scheduler.schedule()
    assert plan is not None
    assert [(chunk.start, chunk.length, chunk.num_drafts) for chunk in plan.chunks] == [(3, 5, 4)]
    return bench, plan, bench.engine.runner.launch(plan).wait()


def allow_fewer_drafts(state: SchedulerState, plan: BatchPlan) -> BatchPlan:
    state.requests[0].max_tokens = 5
    return plan


def have_another_row_pending(state: SchedulerState, plan: BatchPlan) -> BatchPlan:
    state.requests[0].pending += 1
    return plan


def forget_the_drafts_in_flight(state: SchedulerState, plan: BatchPlan) -> BatchPlan:
    state.requests[0].drafts = 0
    return plan


def with_first(plan: BatchPlan, **changed: object) -> BatchPlan:
    return replace(plan, chunks=(plan.chunks[0]._replace(**changed), *plan.chunks[1:]))


BAD_PLANS: dict[str, tuple[str, Callable[[SchedulerState, BatchPlan], BatchPlan]]] = {
    "beyond max_tokens": ("law 19", allow_fewer_drafts),
    "beside another row": ("law (8|19)", have_another_row_pending),
    "not counted": ("law 19", forget_the_drafts_in_flight),
    "more than the limit": ("law (8|19)", lambda _, plan: with_first(plan, length=7, num_drafts=6)),
    "without a sample": ("law (8|19)", lambda _, plan: with_first(plan, samples=False)),
    "with a part of their ids": ("law 8", lambda _, plan: with_first(plan, token_ids=plan.chunks[0].token_ids[:-2])),
}


@pytest.mark.parametrize(("law", "spoil"), BAD_PLANS.values(), ids=BAD_PLANS.keys())
def test_a_bad_plan_breaks_its_law(law: str, spoil: Callable[[SchedulerState, BatchPlan], BatchPlan]) -> None:
    bench, plan, _ = planned()
    state, limits = bench.scheduler.state, bench.scheduler.scheduler.limits
    laws.check_plan(state, limits, plan)
    bad = spoil(state, plan)
    with pytest.raises(LawBroken, match=law):
        laws.check_plan(state, limits, bad)


@pytest.mark.parametrize(("brought", "accepted"), [(5, 5), (3, 3), (0, 1), (5, -1)])
def test_more_accepted_than_was_brought_breaks_law_19(brought: int, accepted: int) -> None:
    """The last token of a row was never computed, so it is no draft."""
    bench, plan, result = planned()
    with pytest.raises(LawBroken, match=rf"law 19: {accepted} drafts of .* are accepted"):
        bench.scheduler.commit(plan, replace(result, token_ids=((1,) * brought,), accepted=(accepted,)))


def test_going_on_behind_rejected_drafts_breaks_law_8() -> None:
    """Their KV is stale."""
    bench, plan, result = planned()
    bench.scheduler.commit(plan, replace(result, token_ids=(result.token_ids[0][:2],), accepted=(1,)))
    request = bench.scheduler.state.requests[0]
    request.tokens.append(0)
    request.computed = request.scheduled = 6
    with pytest.raises(LawBroken, match=r"law 8: .* should start at 5"):
        bench.scheduler.schedule()


def test_pages_kept_for_rejected_drafts_break_law_5() -> None:
    bench, plan, result = planned()
    bench.scheduler.commit(plan, replace(result, token_ids=(result.token_ids[0][:1],), accepted=(0,)))
    state = bench.scheduler.state
    laws.check_state(state)
    state.requests[0].lease.extend(8)
    with pytest.raises(LawBroken, match="law 5: request 0 holds 4 pages, 3 are promised"):
        laws.check_state(state)


def test_a_published_page_of_rejected_drafts_breaks_law_5() -> None:
    bench, plan, result = planned()
    bench.scheduler.commit(plan, replace(result, token_ids=(result.token_ids[0][:1],), accepted=(0,)))
    request = bench.scheduler.state.requests[0]
    request.tokens.extend([0, 0, 0])
    request.lease.publish(request.tokens, 6)
    with pytest.raises(LawBroken, match="law 5: request 0 has published"):
        laws.pages_cover_the_promise(bench.scheduler.state.kv, request, request.lease)

"""Who gives pages back when there are none."""

from __future__ import annotations

from collections.abc import Collection

from sluice.scheduler.request import Request
from sluice.scheduler.state import SchedulerState


def make_room(state: SchedulerState, wanted: Collection[Request]) -> None:
    """Retract until every request of `wanted` can have one more page, or nobody is left to ask.

    Pages of draining requests count: they come back without anybody else losing work, only later. So a request may
    still find no page in this step; it is passed over and has it in a later one. Requests of `wanted` may themselves
    be retracted. The oldest running request never is: whatever happens, it goes on and ends.
    """
    oldest = state.oldest_running()
    coming = sum(state.kv.reclaimable(r.lease) for r in state.draining.values() if r.lease is not None)
    candidates = [r for r in (*state.partial.values(), *state.decoding.values()) if r is not oldest]
    candidates.sort(key=lambda r: (lost_work(state, r), -r.id), reverse=True)
    needy = {request.id for request in wanted}
    while len(needy) > state.kv.available + coming and candidates:
        victim = candidates.pop()
        needy.discard(victim.id)
        assert victim.lease is not None, f"request {victim.id} runs without pages"
        coming += state.kv.reclaimable(victim.lease) if victim.in_flight else 0
        state.retract(victim)


def lost_work(state: SchedulerState, request: Request) -> int:
    """Tokens to compute again if the request is retracted and its own pages are evicted before it returns."""
    assert request.lease is not None, f"request {request.id} runs without pages"
    kept = sum(node.refs > 1 for node in request.lease.path)
    return request.scheduled - kept * state.kv.page_size

"""Preemption: requests give their pages back for want of memory, or for a request of a higher priority."""

from __future__ import annotations

from collections.abc import Collection

from sluice.scheduler.request import Request, Status
from sluice.scheduler.reserve import is_protected
from sluice.scheduler.state import SchedulerState


def make_room(state: SchedulerState, wanted: Collection[Request]) -> None:
    """Preempt requests until every request of `wanted`, all of which run, can have one more page, or no candidate is
    left.

    The victim is the request that loses least work; one that is still loading has done none. The oldest running request
    is never a victim, so it always continues and ends. A request that was a victim often enough is preempted last, and
    for the oldest alone; from then on it is counted with all that it may use. So no request is preempted more than
    `PROTECT_AFTER + max_running_requests` times.

    Pages of draining requests count: they come back later, without loss of other work. So a request may still find no
    page in this step; it is passed over and gets one in a later step. Requests of `wanted` may be preempted themselves.
    """
    oldest = state.oldest_running()
    coming = sum(r.lease.reclaimable() for r in state.draining.values() if r.lease is not None)
    candidates = [r for r in state.running() if r is not oldest]
    candidates += [r for r in state.loading.values() if r is not oldest and r.lease and r.lease.reclaimable()]
    candidates.sort(
        key=lambda r: (is_protected(r), r.status is not Status.LOADING, lost_work(state, r), -r.id), reverse=True
    )
    needy = {request.id for request in wanted}
    has_preempted = False
    while len(needy) > state.kv.available + coming and candidates:
        victim = candidates.pop()
        if is_protected(victim) and (oldest.id not in needy or state.kv.available + coming > 0):
            break
        needy.discard(victim.id)
        assert victim.lease is not None, f"request {victim.id} runs without pages"
        coming += victim.lease.reclaimable() if victim.in_flight else 0
        victim.preemptions += 1
        state.preempt(victim)
        has_preempted = True
    if has_preempted:
        state.reservation.preempted(state.running())


def lost_work(state: SchedulerState, request: Request) -> int:
    """Return the tokens to compute again if a request is preempted and its own pages are evicted before it returns."""
    assert request.lease is not None, f"request {request.id} runs without pages"
    kept = sum(node.refs > 1 for node in request.lease.path)
    return request.scheduled - kept * state.kv.page_size


def preempt_for(state: SchedulerState, request: Request) -> bool:
    """Preempt the latest request of the lowest class that makes way for a waiting request (`WaitingQueue.makes_way`).

    Returns:
        Whether the victim has left already. One in flight leaves later; until then no other request is preempted for a
        higher priority, because the first may make room enough.
    """
    level = state.waiting.level
    lower = [r for r in state.seated() if state.waiting.makes_way(r, request)]
    if state.draining or not lower:
        return False
    victim = max(lower, key=lambda r: (level(r), r.id))
    victim.priority_preemptions += 1
    state.preempt(victim)
    return not state.draining

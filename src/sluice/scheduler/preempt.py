"""Who gives pages back when there are none, and who makes way for a higher priority."""

from __future__ import annotations

from collections.abc import Collection

from sluice.scheduler.request import Request, Status
from sluice.scheduler.reserve import is_protected
from sluice.scheduler.state import SchedulerState


def make_room(state: SchedulerState, wanted: Collection[Request]) -> None:
    """Retract until every request of `wanted`, all of which run, can have one more page, or nobody is left to ask.

    The victim is the one that loses least work; whoever is still loading has done none. The oldest running request is
    never a victim: whatever happens, it goes on and ends. One that was a victim often enough is the last resort, asked
    on behalf of the oldest alone; from then on it is counted with all it may use, so that nobody is retracted more than
    `PROTECT_AFTER + max_running_requests` times.

    Pages of draining requests count: they come back without anybody else losing work, only later. So a request may
    still find no page in this step; it is passed over and has it in a later one. Requests of `wanted` may themselves
    be retracted.
    """
    oldest = state.oldest_running()
    coming = sum(r.lease.reclaimable() for r in state.draining.values() if r.lease is not None)
    candidates = [r for r in state.running() if r is not oldest]
    candidates += [r for r in state.loading.values() if r is not oldest and r.lease and r.lease.reclaimable()]
    candidates.sort(
        key=lambda r: (is_protected(r), r.status is not Status.LOADING, lost_work(state, r), -r.id), reverse=True
    )
    needy = {request.id for request in wanted}
    retracted = False
    while len(needy) > state.kv.available + coming and candidates:
        victim = candidates.pop()
        if is_protected(victim) and (oldest.id not in needy or state.kv.available + coming > 0):
            break
        needy.discard(victim.id)
        assert victim.lease is not None, f"request {victim.id} runs without pages"
        coming += victim.lease.reclaimable() if victim.in_flight else 0
        victim.preemptions += 1
        state.preempt(victim)
        retracted = True
    if retracted:
        state.reservation.retracted(state.running())


def lost_work(state: SchedulerState, request: Request) -> int:
    """Tokens to compute again if the request is retracted and its own pages are evicted before it returns."""
    assert request.lease is not None, f"request {request.id} runs without pages"
    kept = sum(node.refs > 1 for node in request.lease.path)
    return request.scheduled - kept * state.kv.page_size


def preempt_for(state: SchedulerState, request: Request) -> bool:
    """Send back the running request of the lowest class below a waiting one's, the latest of them, if there is one.

    Returns whether it has left already. One in flight leaves later; until then nobody else is sent back, because it
    may make room enough.
    """
    level = state.waiting.level
    below = [r for r in state.seated() if level(r) > level(request)]
    if state.draining or not below:
        return False
    victim = max(below, key=lambda r: (level(r), r.id))
    victim.priority_preemptions += 1
    state.preempt(victim)
    return not state.draining

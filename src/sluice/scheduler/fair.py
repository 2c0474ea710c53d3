"""Several prompts half computed at once: short ones overtake, long ones are not starved.

    due        prompts that had nothing for `DUE_AFTER` steps get a page each
    first      the one that came first gets half of what the step takes, and all that the others leave
    the rest   shortest remaining uncached work first

A prompt that fits whole is not among the `max_partial_prefills`, so a short one never waits for a long one. Prompts are
half computed in order of arrival, so that a later one never keeps the oldest from it. The first prompt gets at least
half of each step (a page, if that is more), with any later arrivals, less what is due to the few others that are half
computed. So it ends after a bounded number of steps, and the next one is first (`laws.steps_to_prefill` has the
formula).
"""

from __future__ import annotations

from sluice.scheduler.admission import NO_ROOM, admit, admit_without_chunk
from sluice.scheduler.batch import BatchBuilder
from sluice.scheduler.prefill import AddResult, PrefillAdder
from sluice.scheduler.prefix_dedup import are_duplicates, is_follower
from sluice.scheduler.prefix_match import reusable_len
from sluice.scheduler.request import Request, Status
from sluice.scheduler.state import SchedulerState
from sluice.types import SchedulerLimits

DUE_AFTER = 4
"""Steps without a token after which a half-computed prompt is due."""


def fair(state: SchedulerState, limits: SchedulerLimits, batch: BatchBuilder, adder: PrefillAdder) -> None:
    """Plan chunks of half-computed and waiting prompts together."""
    partial = list(state.partial.values())
    for request in sorted(partial, key=lambda r: r.planned_at):
        if is_due(state, request):
            adder.add_partial(request, at_most=state.kv.page_size)
    served = {request.id for request in partial if request.planned_at == state.step}
    partial = [request for request in partial if request.id not in served and request.status is Status.PARTIAL]
    waiting: list[Request] = state.ready()
    was_refused = False
    if state.waiting and (limits.dynamic_chunking or not adder.is_full()):
        candidates = [r for r in state.waiting.candidates(state.kv) if not is_follower(state, r)]
        candidates, was_refused = admit_without_chunk(adder, candidates)
        waiting += candidates
    first = first_of(state, limits, partial, waiting)
    if first is None:
        return
    rest = [r for r in (*partial, *waiting) if r is not first and not are_duplicates(state.kv, r, first)]
    in_turn = sorted(waiting, key=state.waiting.rank)
    may_admit = offer(adder, first, guaranteed(state, adder, rest)) not in NO_ROOM and not was_refused
    adder.share()
    for request in sorted(rest, key=lambda r: order(state, limits, r)):
        if adder.is_full():
            break
        if request.status is Status.WAITING and may_admit and not is_follower(state, request):
            may_admit = admit(adder, request, may_cut=request is head_of(in_turn)) not in NO_ROOM
        elif request.status is Status.LOADING:
            may_cut = request in (head_of(in_turn), head_of(state.ready()))
            may_admit = adder.add_loaded(request, may_cut=may_cut) not in NO_ROOM and may_admit
        elif request.status is Status.PARTIAL:
            adder.add_partial(request)


def head_of(in_turn: list[Request]) -> Request | None:
    """Return the first request that has not begun. The first of those whose prefix was loaded may be cut even though
    others came before it: it holds pages already, and the others may be waiting for them."""
    return next((request for request in in_turn if request.status in (Status.WAITING, Status.LOADING)), None)


def is_due(state: SchedulerState, request: Request) -> bool:
    """Return whether a half-computed prompt had nothing for too many steps."""
    return state.step - request.planned_at >= DUE_AFTER


def first_of(
    state: SchedulerState, limits: SchedulerLimits, partial: list[Request], waiting: list[Request]
) -> Request | None:
    """Return the prompt that came first in the first class of priority. A waiting one is considered only if it may be
    cut."""
    candidates = partial if len(state.partial) >= limits.max_partial_prefills else [*partial, *waiting]
    return min(candidates or waiting, key=state.waiting.rank, default=None)


def guaranteed(state: SchedulerState, adder: PrefillAdder, rest: list[Request]) -> int:
    """Return the tokens for the first prompt: half of the step, or a page, or all that the others do not need."""
    room = adder.room()
    return max(room // 2, state.kv.page_size, room - sum(remaining(state, request) for request in rest))


def remaining(state: SchedulerState, request: Request) -> int:
    """Return the uncached tokens left to plan. The path of a waiting request was just brought up to date."""
    if request.status is Status.WAITING:
        return len(request.tokens) - len(request.path) * state.kv.page_size
    return request.extend_len


def order(state: SchedulerState, limits: SchedulerLimits, request: Request) -> tuple[int, int, int]:
    """Return a sort key: class of priority, then the policy's own order, then arrival."""
    if limits.policy != "lpm":
        key = remaining(state, request)
    elif request.status is Status.WAITING:
        key = -reusable_len(state.kv, request)
    else:
        key = request.extend_len - len(request.tokens)
    return state.waiting.level(request), key, request.id


def offer(adder: PrefillAdder, request: Request, at_most: int) -> AddResult:
    """Offer a request to the step, by its status."""
    if request.status is Status.PARTIAL:
        return adder.add_partial(request, at_most)
    if request.status is Status.LOADING:
        return adder.add_loaded(request, at_most)
    return admit(adder, request, at_most)

"""Several prompts half computed at once: short ones overtake, equal ones finish in order, long ones are not starved.

    due        prompts that had nothing for `DUE_AFTER` steps get a page each
    first      the one that came first gets half of what the step takes, and all that shorter ones do not need
    shorter    those with much less left to do than the first, shortest remaining uncached work first
    the rest   what these cannot take goes to the first, and then to the others

Prompts of about the same length that share a step all end late, so they finish in order. Of two prompts that share, the
one with a quarter of the work ends after two fifths of the time that it would have waited, and the other a quarter
later.

A prompt that fits whole is not among the `max_partial_prefills`, so a short one never waits for a long one. Prompts are
half computed in order of arrival, first those that share, so that a later one never keeps the oldest from it. The first
prompt gets at least half of each step (a page, if that is more), with any later arrivals, less what is due to the few
others that are half computed. So it ends after a bounded number of steps, and the next one is first
(`laws.steps_to_prefill` has the formula). No budget is left over while a half-computed prompt lacks tokens (law 17).
"""

from __future__ import annotations

from collections.abc import Sequence

from sluice.scheduler.admission import NO_ROOM, admit, admit_without_chunk
from sluice.scheduler.batch import BatchBuilder
from sluice.scheduler.budget import UNLIMITED
from sluice.scheduler.prefill import AddResult, PrefillAdder
from sluice.scheduler.prefix_dedup import are_duplicates, is_follower
from sluice.scheduler.prefix_match import reusable_len
from sluice.scheduler.request import Request, Status
from sluice.scheduler.state import SchedulerState
from sluice.types import SchedulerLimits

DUE_AFTER = 4
"""Steps without a token after which a half-computed prompt is due."""

MUCH_SHORTER = 4
"""A prompt shares steps with the first one if it has at most this part of the first one's work left: 4 is a quarter."""


def fair(state: SchedulerState, limits: SchedulerLimits, batch: BatchBuilder, adder: PrefillAdder) -> None:
    """Plan chunks of half-computed and waiting prompts together."""
    for request in sorted(state.partial.values(), key=lambda r: r.planned_at):
        if request.status is Status.PARTIAL and is_due(state, request):
            adder.add_partial(request, at_most=state.kv.page_size)
    waiting, was_refused = newcomers(state, limits, adder)
    partial = list(state.partial.values())
    first = first_of(state, limits, partial, waiting)
    if first is None:
        return
    shorter, others = by_length(state, limits, first, [*partial, *waiting])
    waiting.sort(key=state.waiting.rank)
    may_admit = offer(adder, first, guaranteed(state, adder, shorter)) not in NO_ROOM and not was_refused
    if shorter:
        adder.share()
    # If the first one has ended, its place is for the next one to be first, however short those are that share.
    in_turn = among(waiting, shorter) if first.status is Status.PARTIAL else waiting
    may_admit = add_all(adder, shorter, in_turn, may_admit=may_admit)
    if first.status is Status.PARTIAL:
        adder.add_partial(first)
    add_all(adder, others, waiting, may_admit=may_admit)


def newcomers(state: SchedulerState, limits: SchedulerLimits, adder: PrefillAdder) -> tuple[list[Request], bool]:
    """Admit the waiting requests that take no prefill.

    Returns:
        The prompts that may begin, and whether a request was refused for want of a slot or of pages.
    """
    waiting = state.ready()
    if not state.waiting or (adder.is_full() and not limits.dynamic_chunking):
        return waiting, False
    candidates = [r for r in state.waiting.candidates(state.kv) if not is_follower(state, r)]
    candidates, was_refused = admit_without_chunk(adder, candidates)
    return waiting + candidates, was_refused


def by_length(
    state: SchedulerState, limits: SchedulerLimits, first: Request, prompts: Sequence[Request]
) -> tuple[list[Request], list[Request]]:
    """Return the prompts with much less left to do than the first one, and the others, in the order in which they are
    offered to the step. Those that will wait for pages of the first one are left out."""
    work = remaining(state, first)
    rest = [r for r in prompts if r is not first and not are_duplicates(state.kv, r, first)]
    shorter: list[Request] = []
    others: list[Request] = []
    for request in sorted(rest, key=lambda r: order(state, limits, r)):
        (shorter if remaining(state, request) * MUCH_SHORTER <= work else others).append(request)
    return shorter, others


def among(requests: Sequence[Request], chosen: Sequence[Request]) -> list[Request]:
    """Return those of the requests that were chosen, in order."""
    ids = {request.id for request in chosen}
    return [request for request in requests if request.id in ids]


def add_all(adder: PrefillAdder, prompts: Sequence[Request], in_turn: Sequence[Request], *, may_admit: bool) -> bool:
    """Offer prompts to the step.

    Args:
        in_turn: new ones; the first of them that has not begun may be cut.
        may_admit: whether requests may be admitted.

    Returns:
        Whether requests may be admitted after them.
    """
    state = adder.state
    for request in prompts:
        if adder.is_full():
            break
        if request.status is Status.WAITING and may_admit and not is_follower(state, request):
            may_admit = admit(adder, request, may_cut=request is head_of(in_turn)) not in NO_ROOM
        elif request.status is Status.LOADING:
            may_cut = request in (head_of(in_turn), head_of(state.ready()))
            may_admit = adder.add_loaded(request, may_cut=may_cut) not in NO_ROOM and may_admit
        elif request.status is Status.PARTIAL:
            adder.add_partial(request)
    return may_admit


def head_of(in_turn: Sequence[Request]) -> Request | None:
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


def guaranteed(state: SchedulerState, adder: PrefillAdder, shorter: Sequence[Request]) -> int:
    """Return the tokens for the first prompt: half of the step, or a page, or all that shorter ones do not need."""
    if not shorter:
        return UNLIMITED
    room = adder.room()
    return max(room // 2, state.kv.page_size, room - sum(remaining(state, request) for request in shorter))


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

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
prompt gets at least half of each step (a page, if that is more; with an ITL target a quantum, in every other step if
that is all there is), with any later arrivals, less what is due to the few others that are half computed. So it ends
after a bounded number of steps, and the next one is first (`laws.steps_to_prefill` has the formula). No budget is left
over while a half-computed prompt lacks tokens (law 17).

Under the policy `deadline` the first prompt is the one with the earliest deadline. It shares with prompts of its class
or of more urgent ones alone, so a flood of another class takes nothing from it. Each class has `max_partial_prefills`
places of its own, so an urgent prompt always finds one. No page is due to the others, each of which is first in time.
"""

from __future__ import annotations

from collections.abc import Sequence

from sluice.scheduler.admission import NO_ROOM, admit, admit_without_chunk
from sluice.scheduler.batch import BatchBuilder
from sluice.scheduler.budget import UNLIMITED
from sluice.scheduler.prefill import AddResult, PrefillAdder
from sluice.scheduler.prefix_dedup import are_duplicates, is_follower
from sluice.scheduler.prefix_match import reusable_len, usable_pages
from sluice.scheduler.request import Request, Status
from sluice.scheduler.state import SchedulerState
from sluice.types import SchedulerLimits

DUE_AFTER = 4
"""Steps without a token after which a half-computed prompt is due."""

MUCH_SHORTER = 4
"""A prompt shares steps with the first one if it has at most this part of the first one's work left: 4 is a quarter."""


def fair(state: SchedulerState, limits: SchedulerLimits, batch: BatchBuilder, adder: PrefillAdder) -> None:
    """Plan chunks of half-computed and waiting prompts together."""
    add_due(state, adder)
    waiting, was_refused = newcomers(state, limits, adder)
    may_admit = not was_refused
    first = first_of(state, limits, waiting)
    while first is not None:
        shorter, others = by_length(state, limits, first, [*state.partial.values(), *waiting])
        waiting.sort(key=state.waiting.rank)
        if not (shorter and takes_turns(state, adder, first)):
            may_admit = offer(adder, first, guaranteed(state, adder, shorter)) not in NO_ROOM and may_admit
        if first.status is not Status.DECODING or not state.waiting.by_deadline:
            add_others(adder, first, shorter, others, waiting, may_admit=may_admit)
            return
        # With deadlines, what it leaves of the step is for the next one to be first.
        waiting = [r for r in waiting if not has_begun(r) and not is_follower_now(state, r)]
        first = first_of(state, limits, waiting)


def add_others(
    adder: PrefillAdder,
    first: Request,
    shorter: Sequence[Request],
    others: Sequence[Request],
    waiting: Sequence[Request],
    *,
    may_admit: bool,
) -> None:
    """Fill what the first prompt leaves of a step: those that share, then more of the first, then the others."""
    turns = PrefillTurns(adder, first, waiting)
    if shorter:
        adder.share()
    # If the first one has ended, its place is for the next one to be first, however short those are that share.
    of_shorter = turns.among(shorter) if first.status is Status.PARTIAL else waiting
    may_admit = add_all(adder, shorter, turns, of_shorter, may_admit=may_admit)
    if first.status is Status.PARTIAL:
        adder.add_partial(first)
    # Where chunks take several steps, what the first one leaves of a step is too little to begin another one's.
    is_divided = first.status is Status.PARTIAL and adder.computes_layers_of(first)
    of_others = () if is_divided else waiting
    add_all(adder, others, turns, of_others, may_admit=may_admit)


def add_due(state: SchedulerState, adder: PrefillAdder) -> None:
    """Plan a page for each half-computed prompt that had nothing for too many steps."""
    if state.waiting.by_deadline:
        return
    for request in sorted(state.partial.values(), key=lambda r: r.planned_at):
        if request.status is Status.PARTIAL and is_due(state, request):
            adder.add_partial(request, at_most=state.kv.page_size)


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
    """Return the prompts that share with the first one, as they have much less left to do, and the others, in the order
    in which they are offered to the step. Those that will wait for pages of the first one are left out."""
    work = remaining(state, first)
    rest = [r for r in prompts if r is not first and not are_duplicates(state.kv, r, first)]
    shorter: list[Request] = []
    others: list[Request] = []
    for request in sorted(rest, key=lambda r: order(state, limits, r)):
        is_shorter = remaining(state, request) * MUCH_SHORTER <= work
        (shorter if is_shorter and may_share(state, request, first) else others).append(request)
    return shorter, others


def may_share(state: SchedulerState, request: Request, first: Request) -> bool:
    """Return whether a prompt's class may have a part of the first one's steps."""
    queue = state.waiting
    return not queue.by_deadline or queue.level(request) <= queue.level(first)


class PrefillTurns:
    """Which of the prompts that have not begun may be cut: the next one in turn.

    Args:
        first: the first prompt.
        waiting: prompts that may begin, in the policy's order.
    """

    def __init__(self, adder: PrefillAdder, first: Request, waiting: Sequence[Request]) -> None:
        self._state = adder.state
        self._most = adder.limits.max_partial_prefills
        self._first = first
        self._waiting = waiting

    def among(self, chosen: Sequence[Request]) -> list[Request]:
        """Return the waiting requests that were chosen, in order; with deadlines the most urgent class first, since the
        first prompt has the earliest deadline already."""
        ids, queue = {request.id for request in chosen}, self._state.waiting
        found = [request for request in self._waiting if request.id in ids]
        return sorted(found, key=queue.level) if queue.by_deadline else found

    def next_of(self, in_turn: Sequence[Request]) -> Request | None:
        """Return the first request that has not begun and leaves its class a place."""
        return next((r for r in in_turn if not has_begun(r) and self._leaves_a_place(r)), None)

    def _leaves_a_place(self, request: Request) -> bool:
        """Return whether the next one of its class to be first will find a place if this one is cut. The first prompt
        gives its own place to the next; if that is of another class, the last place is for the earliest of the
        class."""
        queue = self._state.waiting
        if not queue.by_deadline or queue.level(self._first) == queue.level(request):
            return True
        peers = (r for r in self._waiting if not has_begun(r) and queue.level(r) == queue.level(request))
        return request is next(peers) or self._state.places_taken(request) + 1 < self._most


def has_begun(request: Request) -> bool:
    """Return whether a request has left the queue, and has what was loaded for it."""
    return request.status not in (Status.WAITING, Status.LOADING)


def is_follower_now(state: SchedulerState, request: Request) -> bool:
    """Return whether a waiting request became a follower in this step."""
    return request.status is Status.WAITING and is_follower(state, request)


def add_all(
    adder: PrefillAdder, prompts: Sequence[Request], turns: PrefillTurns, in_turn: Sequence[Request], *, may_admit: bool
) -> bool:
    """Offer prompts to the step.

    Args:
        in_turn: new ones; the next of them may be cut. The first of those whose prefix was loaded may be cut even
            though others came before it: it holds pages already, and the others may be waiting for them.
        may_admit: whether requests may be admitted.

    Returns:
        Whether requests may be admitted after them.
    """
    state = adder.state
    for request in prompts:
        if adder.is_full():
            break
        if request.status is Status.WAITING and may_admit and not is_follower(state, request):
            may_admit = admit(adder, request, may_cut=request is turns.next_of(in_turn)) not in NO_ROOM
        elif request.status is Status.LOADING:
            may_cut = request in (turns.next_of(in_turn), turns.next_of(state.ready()))
            may_admit = adder.add_loaded(request, may_cut=may_cut) not in NO_ROOM and may_admit
        elif request.status is Status.PARTIAL:
            adder.add_partial(request)
    return may_admit


def is_due(state: SchedulerState, request: Request) -> bool:
    """Return whether a half-computed prompt had nothing for too many steps."""
    return state.step - request.planned_at >= DUE_AFTER


def first_of(state: SchedulerState, limits: SchedulerLimits, waiting: list[Request]) -> Request | None:
    """Return the prompt that came first in the first class of priority, or has the earliest deadline. A waiting one is
    considered only if it may be cut."""
    candidates = [*state.partial.values()]
    candidates += [r for r in waiting if state.places_taken(r) < limits.max_partial_prefills]
    return min(candidates or waiting, key=state.waiting.rank, default=None)


def guaranteed(state: SchedulerState, adder: PrefillAdder, shorter: Sequence[Request]) -> int:
    """Return the tokens for the first prompt: half of the step, or a quantum, or all that shorter ones do not need."""
    if not shorter:
        return UNLIMITED
    room = adder.room()
    return max(room // 2, adder.quantum, room - sum(remaining(state, request) for request in shorter))


def takes_turns(state: SchedulerState, adder: PrefillAdder, first: Request) -> bool:
    """Return whether it is the turn of those that are shorter than the first prompt. Where an ITL target leaves less
    than two quanta, there is nothing to share, so they have every other step."""
    had_the_last = first.status is Status.PARTIAL and first.planned_at == state.step - 1
    return state.pacer is not None and had_the_last and not adder.has_room_for_others(first)


def remaining(state: SchedulerState, request: Request) -> int:
    """Return the uncached tokens left to plan. The path of a waiting request was just brought up to date."""
    if request.status is Status.WAITING:
        return request.horizon - usable_pages(state.kv, request) * state.kv.page_size
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

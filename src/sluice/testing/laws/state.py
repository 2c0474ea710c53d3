"""Laws of the whole state: 4, 6 and 15, and the check of all laws of the state."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from sluice.kv.manager import ResidentLease
from sluice.kv.offload import OffloadLease
from sluice.scheduler.request import Request, Status
from sluice.scheduler.state import SchedulerState
from sluice.testing.laws.pages import (
    LawBroken,
    pages_are_conserved,
    pages_cover_the_promise,
    references_are_counted,
    slots_are_conserved,
    tree_is_reachable,
)
from sluice.testing.laws.states import records_are_conserved
from sluice.testing.laws.tiers import (
    found_nodes_are_found_again,
    loads_are_apart,
    offloaded_pages_are_conserved,
    offloaded_pages_cover_the_promise,
    tiers_are_conserved,
)
from sluice.testing.laws.view import View
from sluice.testing.laws.windows import window_pages_are_conserved, windows_are_bounded


def check_state(state: SchedulerState) -> None:
    """Check laws 1 to 6, 22, and 25 to 27."""
    view = View(state)
    adapters_are_loaded(state)
    pages_are_conserved(view)
    references_are_counted(view)
    tree_is_reachable(view)
    tiers_are_conserved(view)
    found_nodes_are_found_again(state)
    offloaded_pages_are_conserved(view)
    loads_are_apart(view)
    records_are_conserved(view)
    window_pages_are_conserved(view)
    windows_are_bounded(view)
    for request in state.requests.values():
        counters_are_ordered(request)
    for request, resident in view.resident:
        pages_cover_the_promise(state.kv, request, resident)
    for request, offloaded in view.offloaded:
        offloaded_pages_cover_the_promise(state, request, offloaded)
    requests_have_one_status(state)
    slots_are_conserved(view)


KIND_OF: Mapping[Status, type] = {
    Status.LOADING: ResidentLease,
    Status.PARTIAL: ResidentLease,
    Status.DECODING: ResidentLease,
    Status.FORCED: ResidentLease,
    Status.OFFLOADED: OffloadLease,
}
"""The kind of lease that a request of each status holds."""


def counters_are_ordered(request: Request) -> None:
    """4. cached <= computed < known, and computed <= scheduled <= known + pending.

    `known` is the number of its tokens, `pending` the number that its rows in flight are to bring. A row commits the
    tokens that it brought, one or several, and `computed` moves by those of its inputs that are tokens of the request
    now. So the last known token is always left to compute, however many a row brought. A request that decodes has at
    most that one left to plan. One that was brought several is FORCED until they are planned: all that is known of it
    is prefill, and nothing pends. A request that waits has promised nothing. Of a model that fills in blocks all that
    is known may be computed, and one that decodes has at most a whole block left to plan, and the open one.
    """
    known, to_come = len(request.tokens), len(request.tokens) + request.pending
    if request.status in (Status.WAITING, Status.COMPILING):
        counters = (request.computed, request.scheduled, request.pending, request.in_flight)
        if counters != (0, 0, 0, 0):
            raise LawBroken(f"law 4: request {request.id} waits with counters {counters}")
        if not (request.lease is None and request.slot == -1):
            raise LawBroken(f"law 4: request {request.id} waits with pages")
    ended = request.finish_reason is not None  # its rows in flight may have run past its end
    if not (
        0 <= request.cached <= request.computed <= request.scheduled
        and request.computed < known + (request.block_size > 0)
        and (ended or request.scheduled <= to_come)
    ):
        raise LawBroken(
            f"law 4: request {request.id}: cached {request.cached}, computed {request.computed},"
            f" scheduled {request.scheduled}, known {known}, with those pending {to_come}"
        )
    if not (request.pending == 0 or (request.pending > 0 and request.in_flight > 0)):
        raise LawBroken(f"law 4: request {request.id}: {request.pending} tokens pending in {request.in_flight} rows")
    if request.num_outputs > request.max_tokens:
        raise LawBroken(f"law 4: request {request.id}: {request.num_outputs} outputs of at most {request.max_tokens}")
    if not (
        0 <= request.prompt_logprobs_sent <= request.num_targets
        and (request.status in (Status.WAITING, Status.COMPILING, Status.HELD) or is_sent(request))
    ):
        raise LawBroken(
            f"law 4: request {request.id}: {request.prompt_logprobs_sent} of {request.num_targets} prompt logprobs"
            f" sent, {request.cached} tokens cached and {request.computed} computed"
        )
    left = to_come - request.scheduled
    if request.status is Status.DECODING and left > max(1, 2 * request.block_size - 1):
        raise LawBroken(f"law 4: request {request.id} decodes with {left} tokens left to compute")
    if request.status is Status.FORCED and not (left > 0 and request.prefill_end == known and not request.pending):
        raise LawBroken(
            f"law 4: request {request.id} has {left} forced tokens left to compute, {request.prefill_end} of {known}"
            f" are prefill, {request.pending} pend"
        )


def is_sent(request: Request) -> bool:
    """Return whether the wanted log-probabilities of all tokens that were cached or computed were sent."""
    return request.prompt_logprobs_sent >= min(request.computed, request.num_targets)


def requests_have_one_status(state: SchedulerState) -> None:
    """6. Every request is in exactly one collection of the state, the one of its status, and holds a lease of the kind
    that its status needs."""
    seen = [request.id for request in state.waiting]
    for status, members in (
        (Status.COMPILING, state.compiling),
        (Status.HELD, state.adapters.requests),
        (Status.LOADING, state.loading),
        (Status.PARTIAL, state.partial),
        (Status.DECODING, state.decoding),
        (Status.FORCED, state.forced),
        (Status.OFFLOADED, state.offloaded),
        (Status.DRAINING, state.draining),
    ):
        seen += members
        for request in members.values():
            if request.status is not status:
                raise LawBroken(f"law 6: request {request.id} is {request.status}, stored in {status}")
            is_right = status not in KIND_OF or isinstance(request.lease, KIND_OF[status])
            if not is_right:
                raise LawBroken(f"law 6: request {request.id} is {status} with {request.lease}")
    for request in state.waiting:
        if request.status is not Status.WAITING:
            raise LawBroken(f"law 6: request {request.id} waits but is {request.status}")
    if sorted(seen) != sorted(state.requests):
        raise LawBroken(f"law 6: found {dict(Counter(seen))} for requests {sorted(state.requests)}")
    if not all(request.in_flight > 0 for request in state.draining.values()):
        raise LawBroken(f"law 6: a request drains with nothing in flight: {sorted(state.draining)}")
    prefilling = {request.id for request in state.running() if request.is_prefilling}
    if state.computing.keys() != prefilling:
        raise LawBroken(f"law 6: prompts of {sorted(prefilling)} are being computed, not of {sorted(state.computing)}")


def adapters_are_loaded(state: SchedulerState) -> None:
    """22. A request that waits for its turn, runs or drains has its adapter loaded, which counts it. There are no more
    adapters than places, and no adapter waits while a place is free."""
    places = state.adapters
    users = Counter(
        request.submit.adapter
        for request in state.requests.values()
        if request.submit.adapter and request.status not in (Status.COMPILING, Status.HELD)
    )
    counted = {use.adapter: use.users for use in places.uses() if use.users}
    if counted != dict(users):
        raise LawBroken(f"law 22: adapters have {dict(users)} users, {counted} are counted")
    if len(places.placed) > places.num_places or any(adapter in places.loading for adapter in users):
        raise LawBroken(f"law 22: {places.placed} in {places.num_places} places, {places.loading} being loaded")
    waiting = {request.submit.adapter for request in places.requests.values()} - set(places.placed)
    idle = [adapter for adapter, count in places.placed.items() if not count and adapter not in places.loading]
    if waiting and (idle or len(places.placed) < places.num_places):
        raise LawBroken(f"law 22: {waiting} wait for a place, beside {idle} in {places.num_places} places")


def quiet_means_empty(state: SchedulerState) -> None:
    """15. With no requests nothing is held, and after a flush every page is free."""
    if state.requests:
        raise LawBroken(f"law 15: requests {sorted(state.requests)} are left")
    if len(state.free_slots) != state.num_slots:
        raise LawBroken(f"law 15: {len(state.free_slots)} of {state.num_slots} slots free")
    state.kv.flush()
    uses = state.kv.tiers.uses()
    if state.kv.tiers.num_in_flight:
        raise LawBroken(f"law 15: {state.kv.tiers.num_in_flight} copies are in flight")
    if any(use.used for use in uses):
        raise LawBroken(f"law 15: pages of {uses} are held after a flush")
    if not (state.kv.pool.num_free == state.kv.num_pages and state.kv.tree.num_pages == 0):
        raise LawBroken(f"law 15: {state.kv.pool.num_free} of {state.kv.num_pages} pages free after a flush")
    windows = state.kv.windows
    if windows is not None and windows.pool.num_free < windows.pool.num_pages:
        raise LawBroken(f"law 15: {windows.pool.num_free} of {windows.pool.num_pages} pages of windows free")

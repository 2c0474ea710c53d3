"""Drafting: which rows of a step have drafts, and which requests wait so that theirs may have some.

A row with drafts computes a request's last token and, behind it, guesses of what follows. It samples after each of
them; a guess is accepted if it is the token that was sampled in its place. So a row brings one token more than it has
accepted drafts, and these are the tokens that it would have brought without.

What follows can be guessed when all that is before is known. So a request that drafts are wanted for is planned when
nothing of it is pending, whatever its lookahead is; the others keep their overlap. Such requests are planned together:
in steps that alternate, each would read all weights for a part of them.
"""

from __future__ import annotations

from collections.abc import Sequence

from sluice.kv.manager import ResidentLease
from sluice.scheduler.batch import BatchBuilder
from sluice.scheduler.drafting.drafter import Drafter
from sluice.scheduler.prefill import PrefillAdder
from sluice.scheduler.request import Request
from sluice.scheduler.state import SchedulerState
from sluice.types import SchedulerLimits

STEP_DRAFTS = 64
"""Most drafts of a step, if a row has not more: for as many samples beside those of all requests there is memory."""


def most_drafts(of_row: int) -> int:
    """Return the most drafts of a step of which a row has so many at most; 0 if it has none."""
    return max(of_row, STEP_DRAFTS) if of_row else 0


def ready_to_decode(state: SchedulerState, limits: SchedulerLimits) -> list[Request]:
    """Return the requests that decode and may have their next chunk, in the order of their turns."""
    ready = [r for r in state.decoding.values() if r.wants_chunk()]
    if state.drafter is None:
        return ready
    return [r for r in ready if not waits_for_drafts(state, limits, r)]


def waits_for_drafts(state: SchedulerState, limits: SchedulerLimits, request: Request) -> bool:
    """Return whether a request that may have its next chunk is left out of this step, to have drafts in the next: not
    all of its tokens are known, or rows of others that have drafts are in flight. In a pipeline these are in other
    steps anyway. None is left out while steps have no room for drafts."""
    if state.drafter is None or not state.has_room_for_drafts or not (request.pending or state.num_drafting):
        return False
    return (request.pending > 0 or limits.pipeline_stages == 1) and state.drafter.wants(request)


def draft(state: SchedulerState, limits: SchedulerLimits, batch: BatchBuilder, adder: PrefillAdder) -> None:
    """Add drafts to the decodes of the step, when each has its token: as many as neither prompts nor the next tokens of
    running requests lack."""
    drafter = state.drafter
    if drafter is None or not drafter.pays(batch.num_decodes) or not batch.num_decodes:
        return
    rows = drafter.awake([state.requests[chunk.request_id] for chunk in batch.rows[: batch.num_decodes]])
    if not rows:
        return
    room = min(adder.room_for_drafts(), most_drafts(limits.num_draft_tokens))
    state.has_room_for_drafts = room > 0
    found = proposed(state, drafter, rows, min(room, limits.num_draft_tokens)) if room > 0 else {}
    chosen = drafter.choose(batch.num_decodes, found, room) if found else found
    if chosen:
        batch.add_drafts(chosen, state.requests, in_runner=drafter.in_runner)


def proposed(state: SchedulerState, drafter: Drafter, rows: Sequence[Request], of_row: int) -> dict[int, Sequence[int]]:
    """Return guesses for requests that have a row in this step, at most so many for each, and none that takes a page
    from the next token of a running request."""
    pages = state.kv.available - state.num_running
    found: dict[int, Sequence[int]] = {}
    for request in rows:
        if request.pending > 1:
            continue
        # A request that waits for nothing need not be asked for where nothing is in flight that might wait for it.
        is_wanted = drafter.wants(request) if request.lookahead or state.num_in_flight else True
        if request.lookahead and not is_wanted:
            continue
        if is_wanted:  # others wait for such rows alone, so one that is planned in any step keeps none waiting
            request.is_drafting = True
            state.num_drafting += 1
        at_most = min(of_row, request.max_tokens - request.num_outputs - 1)
        at_most = min(at_most, tokens_held(request, state.kv.page_size, pages))
        drafts = drafter.propose(request, at_most) if at_most > 0 else ()
        if drafts:
            found[request.id] = drafts
            pages -= lease_of(request).missing(request.scheduled + len(drafts))
    return found


def tokens_held(request: Request, page_size: int, pages: int) -> int:
    """Return the tokens behind `scheduled` that its pages hold, with so many more."""
    return lease_of(request).capacity + max(0, pages) * page_size - request.scheduled


def lease_of(request: Request) -> ResidentLease:
    assert isinstance(request.lease, ResidentLease), f"request {request.id} is not resident: {request.lease}"
    return request.lease

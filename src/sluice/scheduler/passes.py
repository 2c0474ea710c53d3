"""The passes that fill a step, and the tables of them.

MIXED fills one batch from all passes, decodes first: no token budget is left to prefill before every running request
has its token, so a decode never waits for a prompt. PREFILL_FIRST fills a batch with prefill and lets decodes run
only in steps that have none.
"""

from __future__ import annotations

import functools
from collections.abc import Callable

from sluice.scheduler.admission import admit as admit_request
from sluice.scheduler.admission import kind_of, start_load
from sluice.scheduler.batch import BatchBuilder
from sluice.scheduler.drafting.draft_rows import draft, ready_to_decode
from sluice.scheduler.fair import fair
from sluice.scheduler.offloading import ALONE, Kinds, plan_offloaded
from sluice.scheduler.preempt import make_room
from sluice.scheduler.prefill import AddResult, PrefillAdder
from sluice.scheduler.prefix_dedup import is_follower
from sluice.scheduler.queue import is_by_deadline
from sluice.scheduler.request import Request, Status
from sluice.scheduler.state import SchedulerState
from sluice.types import Bound, SchedulerLimits

Pass = Callable[[SchedulerState, SchedulerLimits, BatchBuilder, PrefillAdder], None]


def decode(state: SchedulerState, limits: SchedulerLimits, batch: BatchBuilder, adder: PrefillAdder) -> None:
    """Plan one token for every running request whose prompt is planned and whose samples are not too far behind, or one
    pass over its open block, with the whole block before it. In a pipeline, only for those whose turn it is."""
    ready = ready_to_decode(state, limits)
    if limits.pipeline_stages > 1:
        ready = [r for r in ready if token_is_there(state, limits, r)][: decodes_in_turn(state, limits)]
    if ready:
        state.reservation.decoded()
    is_by_block = limits.block_size > 0
    if is_by_block:
        needy = [r for r in ready if needs_page(r)]
    else:
        needy = [r for r in ready if r.lease is not None and r.scheduled == r.lease.capacity]
    if len(needy) > state.kv.available:
        adder.note(Bound.KV_PAGES)
        make_room(state, needy)
        ready_before = len(ready)
        ready = [r for r in ready if r.id in state.decoding]
        for request in sorted(ready, key=lambda r: r.id):
            if request not in needy or state.kv.available:
                batch.promise(request, request.extend_len if is_by_block else 1)
                state.decoded(request)
        if limits.pipeline_stages > 1 and ready_before > len(ready) and not batch.num_decodes:
            decode(state, limits, batch, adder)  # those whose turn it was have left
        return
    for request in ready:
        batch.promise(request, request.extend_len if is_by_block else 1)
        state.decoded(request)


def needs_page(request: Request) -> bool:
    """Return whether a request that fills in blocks has no page for what it computes next."""
    return request.lease is not None and request.lease.missing(request.horizon) > 0


def microbatches(state: SchedulerState, limits: SchedulerLimits) -> int:
    """Return the steps of a pipeline that streams are divided among.

    Without a lookahead, a stream's next token is planned when the host has the one before, and one step more than there
    are stages is planned by then. If prompts wait, that step is for them, and has its share of the streams. If none
    does, it would only read all weights once more.
    """
    has_prompts = bool(state.partial or state.forced or state.loading or state.waiting)
    return limits.pipeline_stages + (has_prompts and not limits.lookahead)


def token_is_there(state: SchedulerState, limits: SchedulerLimits, request: Request) -> bool:
    """Return whether the first stage need not wait for a stream's last token: the host has it, or the last stage will
    when the step begins. Else the whole step would wait, with the prompts in it."""
    return not request.pending or state.step - request.planned_at >= limits.pipeline_stages


def decodes_in_turn(state: SchedulerState, limits: SchedulerLimits) -> int:
    """Return how many requests decode in the next step of a pipeline.

    Where all of them decode in the same step, the other steps of the pipeline have none, for ever. So they take turns:
    any `microbatches` consecutive steps have as many decodes as requests decode, and no two of these steps differ by
    more than one.
    """
    steps = microbatches(state, limits)
    if not limits.lookahead and state.num_in_flight >= steps:
        return 0
    return max(1, (len(state.decoding) + state.step % steps) // steps)


def forced(state: SchedulerState, limits: SchedulerLimits, batch: BatchBuilder, adder: PrefillAdder) -> None:
    """Plan the tokens that grammars forced. They are prefill of requests that stream, so they precede prompts."""
    adder.add_forced(list(state.forced.values()))


def partial(state: SchedulerState, limits: SchedulerLimits, batch: BatchBuilder, adder: PrefillAdder) -> None:
    """Plan the next chunk of the prompt that is half computed: it holds a slot and pages, so it precedes new ones."""
    for request in list(state.partial.values()):
        adder.add_partial(request)
    if limits.long_prefill_token_threshold:
        adder.share()


def admit(state: SchedulerState, limits: SchedulerLimits, batch: BatchBuilder, adder: PrefillAdder) -> None:
    """Admit waiting requests in the policy's order until one is cut or refused. At most one prompt is half computed.
    While one is, others are admitted whole, into what a cap on its share leaves."""
    waiting = state.waiting.candidates(state.kv) if state.waiting else []
    for request in (*state.ready(), *waiting):
        if adder.is_full() or (state.partial and not limits.long_prefill_token_threshold):
            break
        if request.status is Status.LOADING:
            if adder.add_loaded(request) is not AddResult.CONTINUE:
                break
            continue
        if is_follower(state, request):
            continue
        if admit_request(adder, request) is not AddResult.CONTINUE:
            break


def offloaded(
    state: SchedulerState, limits: SchedulerLimits, batch: BatchBuilder, adder: PrefillAdder, kinds: Kinds
) -> None:
    """Plan work on an offloaded chunk out of what is left of the step, unless the step has such work."""
    if not state.offloaded or batch.has_offloaded:
        return
    room = adder.room()
    if room <= 0 and len(batch):
        return
    if state.pacer is None and not (len(batch) or any(state.running()) or state.waiting or state.loading):
        room *= ALONE
    planned = plan_offloaded(state, adder.offload_limits(), batch, room, kinds)
    adder.spend(planned.cost)
    adder.note(planned.bound)


def offloaded_first(
    state: SchedulerState, limits: SchedulerLimits, batch: BatchBuilder, adder: PrefillAdder, kinds: Kinds
) -> None:
    """Plan work on an offloaded chunk before other prompts, in every other step: half of each step might be less than
    a page for them, or less than a work item."""
    if state.step % 2 == 0 or not (state.partial or state.waiting or state.loading):
        offloaded(state, limits, batch, adder, kinds)


def groups_of(limits: SchedulerLimits) -> tuple[tuple[Pass, ...], ...]:
    """Return the groups of passes of a schedule. The first group that fills anything is the step."""
    has_several = limits.max_partial_prefills > 1 or (is_by_deadline(limits) and limits.chunked_prefill_size > 0)
    prefill: tuple[Pass, ...] = (load_back, fair) if has_several else (load_back, partial, admit)
    if limits.schedule == "mixed":
        both = Kinds(prefill=True, decode=True)
        prefill = (forced, with_kinds(offloaded_first, both), *prefill)
        # With a target drafts have their part of the time to it. Without one they have what prompts leave.
        rows = (decode, draft, *prefill) if limits.itl_target else (decode, *prefill, draft)
        return ((*rows, with_kinds(offloaded, both)),)
    of_prompts, of_decodes = Kinds(prefill=True, decode=False), Kinds(prefill=False, decode=True)
    prefill = (forced, with_kinds(offloaded_first, of_prompts), *prefill, with_kinds(offloaded, of_prompts))
    return (prefill, (decode, draft, with_kinds(offloaded, of_decodes)))


def with_kinds(offloaded: Callable[..., None], kinds: Kinds) -> Pass:
    """Return a pass over these kinds of chunks."""
    return functools.partial(offloaded, kinds=kinds)


def load_back(state: SchedulerState, limits: SchedulerLimits, batch: BatchBuilder, adder: PrefillAdder) -> None:
    """Start the loads that there is room for, in the policy's order. Requests that need none keep their place in the
    queue, and what they will need is left to them."""
    kv = state.kv
    if not kv.tiers.order or not state.free_slots:
        return
    slots, pages = 0, 0
    for request in state.waiting.candidates(kv):
        if is_follower(state, request):
            continue
        kind = kind_of(kv, request)
        nodes = kind.loadable(state, request)
        if nodes and len(state.free_slots) > slots and start_load(adder, request, nodes, pages):
            continue
        slots, pages = slots + 1, pages + kind.needs(state, request)
        if len(state.free_slots) <= slots or kv.available < pages:
            break

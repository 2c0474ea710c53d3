"""Plan offloaded requests, whose contexts are longer than the device, a slice of a chunk at a time.

A chunk of theirs is a list of work items (`types.OffloadLimits`). A step takes as many as its budget of prefill tokens
pays for, so the steps of other requests are no longer than beside an ordinary prompt. Where other prompts wait too,
they take turns, and each has what the other leaves. One chunk is open at a time, since there is one ring; when it is
complete, it is the next request's turn.

Where blocks are read from a disk, they are read ahead from the moment that a chunk is begun, by a slice without work
items, and a work item is planned once all its blocks were reported as loaded (`OpenChunk.ready`). A chunk is begun in
the step that completes the one before, so that its first blocks have come when it is its turn.
"""

from __future__ import annotations

import math
from typing import NamedTuple

from sluice.kv.offload import OffloadLease
from sluice.scheduler.batch import BatchBuilder
from sluice.scheduler.cost import StepLoad
from sluice.scheduler.drafting.drafter import Drafter
from sluice.scheduler.request import Request
from sluice.scheduler.state import OpenChunk, SchedulerState
from sluice.types import Bound, Chunk, ChunkSlice, OffloadLimits

ALONE = 8
"""Times a step's budget that offloaded work may cost while no other request waits for it: each step has its price, and
a newcomer waits for one of them."""
MOST_LOSSES = 64
"""Pages that a request may lose before it gets further than it had been: a disk that loses all of them ends it."""


class Kinds(NamedTuple):
    """Which chunks belong to a step."""

    prefill: bool
    decode: bool

    def have(self, request: Request) -> bool:
        """Return whether the request's next chunk, or its open one, is among them."""
        return self.prefill if is_prefill(request) else self.decode


class PlannedItems(NamedTuple):
    """What was planned of an offloaded chunk."""

    cost: int = 0
    """Cost in tokens."""
    bound: Bound = Bound.NOTHING
    """What kept the chunk from being more."""


def plan_offloaded(
    state: SchedulerState, limits: OffloadLimits, batch: BatchBuilder, room: int, kinds: Kinds
) -> PlannedItems:
    """Plan a slice of an offloaded chunk, if there is one that can continue.

    Args:
        room: tokens that it may cost; one work item is planned at any cost.
        kinds: the chunks that belong to this step.
    """
    if state.open_chunk is None:
        request = next_request(state, limits, kinds)
        state.open_chunk = None if request is None else opened(state, limits, request, batch)
    chunk = state.open_chunk
    if chunk is None or not kinds.have(chunk.request) or not chunk.request.wants_chunk():
        return PlannedItems()
    if awaits_loads(state):
        return PlannedItems(bound=Bound.DISK_READS)
    planned = plan_slice(state, limits, chunk, batch, room)
    if state.open_chunk is None and limits.reports_loads and limits.selects_ahead and kinds.prefill:
        begin_next(state, limits, batch, kinds)
    return planned


def begin_next(state: SchedulerState, limits: OffloadLimits, batch: BatchBuilder, kinds: Kinds) -> None:
    """Begin the next chunk in the step that completes one, if it has blocks to read: they are read meanwhile.

    Its token may be one that this step samples. It is needed when the chunk's first work item is planned.
    """
    request = next_request(state, limits, kinds, is_early=True)
    if request is not None and lease_of(request).stored:
        state.open_chunk = opened(state, limits, request, batch)
        plan_slice(state, limits, state.open_chunk, batch, room=0)


def is_prefill(request: Request) -> bool:
    """Return whether its next chunk is of its prompt, or of the tokens it had when it was admitted again, unless these
    are decoded again."""
    return request.scheduled < request.prefill_end


def next_request(
    state: SchedulerState, limits: OffloadLimits, kinds: Kinds, *, is_early: bool = False
) -> Request | None:
    """Return the request whose turn it is: of those that can continue, the one that had no chunk for longest.

    Args:
        is_early: it may be one that cannot continue before its samples in flight are known, unless it has a grammar or
            drafts: these rows may bring several tokens or none, and its next chunk begins and ends elsewhere.
    """
    for request in state.offloaded.values():
        may_be_early = is_early and not request.submit.grammar and not request.drafts
        wants = request.has_more if may_be_early else request.wants_chunk()
        if not wants or lease_of(request).is_opening or not kinds.have(request) or waits_for_drafts(state, request):
            continue
        if length_of(state, limits, request) > 0:
            return request
    return None


def length_of(state: SchedulerState, limits: OffloadLimits, request: Request) -> int:
    """Return the tokens of its next chunk: as many as the window has room for, cut on a page boundary or not at all,
    since the window, chunks and cached prefixes are whole pages. 0: it waits until more of its pages are stored."""
    size, start, lease = state.kv.page_size, request.scheduled, lease_of(request)
    wanted = request.extend_len
    if limits.decode_lag and is_prefill(request):
        wanted = request.prefill_end - start
    elif limits.decode_lag:
        wanted = min(wanted, 1) if lease.stored >= start // size - limits.decode_lag else 0
    length = min(wanted, limits.chunk_tokens, lease.end_of_window * size - start)
    # Forced tokens begin anywhere in a page.
    return length if length == wanted else length - (start + length) % size


def waits_for_drafts(state: SchedulerState, request: Request) -> bool:
    """Return whether a request that could continue waits until nothing of it is pending, so that its next chunk may
    have drafts."""
    drafter = drafter_for(state, request)
    return request.pending > 0 and drafter is not None and drafter.wants(request)


def drafter_for(state: SchedulerState, request: Request) -> Drafter | None:
    """Return what guesses the tokens of a request; None if its next chunk can have no drafts. A drafter of the runner
    reads the device, and nothing that is behind it. Where a chunk attends to a selection of blocks, it is that of its
    first token, so drafts would change what the others attend to."""
    drafter = state.drafter
    if drafter is None or drafter.in_runner or is_prefill(request):
        return None
    if state.kv.offload.limits.decode_blocks or state.kv.offload.limits.decode_lag:
        return None
    return drafter


def drafts_of(state: SchedulerState, limits: OffloadLimits, request: Request) -> tuple[int, ...]:
    """Return the drafts of its next chunk: as many as the window has room for, and as do not double its cost. Its
    context is read once for all of them, which makes a token dear where there are none."""
    drafter = drafter_for(state, request)
    if drafter is None or request.pending:
        return ()
    lease, size = lease_of(request), state.kv.page_size
    at_most = min(
        state.num_draft_tokens,
        request.max_tokens - request.num_outputs - 1,
        lease.end_of_window * size - request.scheduled - 1,
    )
    items, layers = limits.items(lease.stored, 1, is_decode=True), limits.num_layers
    groups = (items.total - layers) / layers
    costs = [
        groups * limits.cost_of_group(n, size, is_decode=True) + limits.cost_of_rest(n) for n in range(1, at_most + 2)
    ]
    costs = [cost for cost in costs if cost <= 2 * costs[0]]
    return tuple(drafter.propose_alone(request, costs)) if len(costs) > 1 else ()


def opened(state: SchedulerState, limits: OffloadLimits, request: Request, batch: BatchBuilder) -> OpenChunk:
    """Open the request's next chunk."""
    lease = lease_of(request)
    start, length = request.scheduled, length_of(state, limits, request)
    is_last, drafts = length == request.extend_len, drafts_of(state, limits, request)
    end = start + length + len(drafts)
    chunk = Chunk(
        request_id=request.id,
        slot=request.slot,
        start=start,
        length=end - start,
        token_ids=(*request.tokens[start : start + length], *drafts),
        new_pages=(),
        samples=is_last and not request.embeds,
        targets=request.targets(start, end),
        embeds=is_last and request.embeds,
        num_drafts=len(drafts),
    )
    if not lease.has_slot:
        lease.has_slot = True
        batch.open_slot(request)
    items = limits.items(lease.stored, chunk.length, is_decode=not is_prefill(request))
    return OpenChunk(
        request,
        chunk,
        base=lease.stored,
        window_pages=lease.window_pages(lease.stored, state.kv.pages_for(end)),
        items=items,
        step=state.step,
        ready=0 if limits.reports_loads and lease.stored else items.total,
    )


def plan_slice(
    state: SchedulerState, limits: OffloadLimits, open_chunk: OpenChunk, batch: BatchBuilder, room: int
) -> PlannedItems:
    """Plan the next work items of a chunk that are ready; or none, in its first slice."""
    request, chunk = open_chunk.request, open_chunk.chunk
    lease = lease_of(request)
    stop, cost = open_chunk.planned, 0.0
    bound = Bound.DISK_READS if open_chunk.ready < open_chunk.items.total else Bound.NOTHING
    while stop < open_chunk.ready:
        more = cost_of(state, limits, open_chunk, stop)
        if stop > open_chunk.planned and cost + more > room:
            bound = Bound.OFFLOAD_BUDGET
            break
        cost += more
        stop += 1
    size = state.kv.page_size
    part = ChunkSlice(
        chunk,
        stored_pages=tuple(lease.row[lease.known : open_chunk.base]),
        base=open_chunk.base * size,
        pages=open_chunk.window_pages,
        first=open_chunk.planned,
        stop=stop,
        total=open_chunk.items.total,
        is_decode=not is_prefill(request),
    )
    batch.add_slice(part, load_of(limits, part, size))
    lease.known = open_chunk.base
    lease.bases.append(open_chunk.base)
    request.in_flight += 1
    open_chunk.planned, open_chunk.is_begun = stop, True
    if part.completes:
        state.open_chunk = None
        request.scheduled, request.drafts = chunk.known_end, chunk.num_drafts
        request.pending += chunk.samples
        state.offloaded[request.id] = state.offloaded.pop(request.id)  # the others are first now
    return PlannedItems(math.ceil(cost), bound)


def awaits_loads(state: SchedulerState) -> bool:
    """Return whether the open chunk can continue only when more of its blocks are reported as loaded."""
    chunk = state.open_chunk
    return chunk is not None and chunk.is_begun and chunk.planned == chunk.ready


def cost_of(state: SchedulerState, limits: OffloadLimits, open_chunk: OpenChunk, item: int) -> float:
    """Return the tokens that a work item costs."""
    length = open_chunk.chunk.length
    if open_chunk.items.is_rest(item):
        return limits.cost_of_rest(length)
    return limits.cost_of_group(length, state.kv.page_size, is_decode=not is_prefill(open_chunk.request))


def load_of(limits: OffloadLimits, piece: ChunkSlice, page_size: int) -> StepLoad:
    """Return what a slice adds to its step, in tokens of the whole model."""
    length = piece.chunk.length
    items = limits.items(piece.base // page_size, length, is_decode=piece.is_decode)
    rests = items.rests(piece.stop) - items.rests(piece.first)
    keys = limits.keys_of_group(page_size, is_decode=piece.is_decode) * (piece.stop - piece.first - rests)
    return StepLoad(
        tokens=length * rests / limits.num_layers,
        rows=rests / limits.num_layers,
        pairs=keys * length / limits.num_layers,
        loaded=keys * limits.page_bytes / page_size / limits.num_layers,
    )


def lease_of(request: Request) -> OffloadLease:
    assert isinstance(request.lease, OffloadLease), f"request {request.id} is offloaded with {request.lease}"
    return request.lease


def lose_page(state: SchedulerState, request: Request, page: int) -> bool:
    """Give up a page that an offloaded request reads, and let the request wait to be admitted again.

    Args:
        page: of the tier; one that the request holds.

    Returns:
        Whether it waits; False: it has lost too many, and is to end.
    """
    lease_of(request).lose(page)
    if request.computed > request.furthest:
        request.furthest, request.num_losses = request.computed, 0
    request.num_losses += 1
    if request.num_losses > MOST_LOSSES:
        return False
    state.set_back(request)
    return True

"""Offloaded requests: contexts longer than the device, a part of a chunk at a time.

A chunk of theirs is many units of work (`types.StreamLimits`), and a step takes as many as its budget of prefill tokens
pays for; where others want to prefill too they take turns, and one has what the other leaves. So their neighbours'
steps are no longer than beside an ordinary prompt, while they prefill and while they decode. One chunk is open at a
time, since the ring is one; when it is done it is the next request's turn.
"""

from __future__ import annotations

import math
from typing import NamedTuple

from sluice.kv.offload import OffloadLease
from sluice.scheduler.batch import BatchBuilder
from sluice.scheduler.request import Request
from sluice.scheduler.state import OpenChunk, SchedulerState
from sluice.types import BatchPlan, Chunk, ChunkSlice, OffloadLimits

ALONE = 8
"""Times a step's budget that offloaded work may cost while no other request waits for it: each step has its price, and
a newcomer waits for one of them."""


class Kinds(NamedTuple):
    """Which chunks belong to a step."""

    prefill: bool
    decode: bool

    def have(self, request: Request) -> bool:
        """The request's next chunk, or its open one, is among them."""
        return self.prefill if is_prefill(request) else self.decode


def plan_offloaded(state: SchedulerState, limits: OffloadLimits, batch: BatchBuilder, room: int, kinds: Kinds) -> int:
    """Plan a part of a offloaded chunk, if there is one to work on.

    Args:
        room: tokens that it may cost; a unit is planned whatever it costs.
        kinds: of chunks that belong to this step.

    Returns:
        What it costs, in tokens.
    """
    if state.open_chunk is None:
        request = next_request(state, limits, kinds)
        state.open_chunk = None if request is None else opened(state, limits, request, batch)
    chunk = state.open_chunk
    if chunk is None or not kinds.have(chunk.request) or must_wait(limits, chunk):
        return 0
    return plan_part(state, limits, chunk, batch, room)


def is_prefill(request: Request) -> bool:
    """Its next chunk is of its prompt, or of what it knew when it was taken up again."""
    return request.scheduled < request.prefill_end


def next_request(state: SchedulerState, limits: OffloadLimits, kinds: Kinds) -> Request | None:
    """Whose turn it is: whoever had no chunk for longest, of those that can go on."""
    for request in state.offloaded.values():
        if kinds.have(request) and request.wants_chunk() and length_of(state, limits, request) > 0:
            return request
    return None


def length_of(state: SchedulerState, limits: OffloadLimits, request: Request) -> int:
    """Tokens of its next chunk: as many as the window has places for, cut on a page boundary or not at all. Places and
    chunks are whole pages, and so is what was found of its prompt."""
    room = lease_of(request).end_of_window * state.kv.page_size - request.scheduled
    return min(request.extend_len, limits.chunk_tokens, room)


def opened(state: SchedulerState, limits: OffloadLimits, request: Request, batch: BatchBuilder) -> OpenChunk:
    """Begin a chunk."""
    lease = lease_of(request)
    start, length = request.scheduled, length_of(state, limits, request)
    end = start + length
    chunk = Chunk(
        request_id=request.id,
        slot=request.slot,
        start=start,
        length=length,
        token_ids=tuple(request.tokens[start:end]),
        new_pages=(),
        samples=length == request.extend_len,
        targets=request.targets(start, end),
    )
    if not lease.has_slot:
        lease.has_slot = True
        batch.open_slot(request)
    groups = limits.groups(lease.stored, is_decode=not is_prefill(request))
    places = lease.window_pages(lease.stored, state.kv.pages_for(end))
    return OpenChunk(request, chunk, lease.stored, places, groups, 0, limits.num_layers * (groups + 1))


def plan_part(
    state: SchedulerState, limits: OffloadLimits, open_chunk: OpenChunk, batch: BatchBuilder, room: int
) -> int:
    """Plan the next units of a chunk: one at least, unless some are owed. Returns what they cost."""
    request, chunk = open_chunk.request, open_chunk.chunk
    lease = lease_of(request)
    first, end = open_chunk.planned, end_of_part(limits, open_chunk)
    unit, cost = (
        first,
        sum(cost_of(state, limits, open_chunk, each) for each in range(first - open_chunk.unfinished, first)),
    )
    while unit < end:
        more = cost_of(state, limits, open_chunk, unit)
        if unit > first and cost + more > room:
            break
        cost += more
        unit += 1
    new_rows = tuple(lease.row[lease.known : open_chunk.base])
    lease.known = open_chunk.base
    size = state.kv.page_size
    part = ChunkSlice(
        chunk,
        new_rows,
        open_chunk.base * size,
        open_chunk.places,
        first,
        unit,
        open_chunk.total,
        is_decode=not is_prefill(request),
    )
    open_chunk.planned = unit
    lease.bases.append(open_chunk.base)
    request.in_flight += 1
    batch.add_slice(part)
    if part.completes:
        state.open_chunk = None
        request.scheduled = chunk.end
        request.pending += chunk.samples
        state.offloaded[request.id] = state.offloaded.pop(request.id)  # the others are first now
    return math.ceil(cost)


def must_wait(limits: OffloadLimits, open_chunk: OpenChunk) -> bool:
    """Only its last unit is left, and cannot be planned before what is in flight has come back."""
    return not open_chunk.unfinished and end_of_part(limits, open_chunk) == open_chunk.planned


def end_of_part(limits: OffloadLimits, open_chunk: OpenChunk) -> int:
    """The unit that the chunk's next part may not go beyond. Where loads may be late, no units are added to those that
    are owed, and the last unit, behind which its request is told of the chunk, waits until all others are done."""
    if open_chunk.unfinished:
        return open_chunk.planned
    if not (limits.may_be_late and open_chunk.groups):
        return open_chunk.total
    last = open_chunk.total - 1
    return open_chunk.total if open_chunk.planned == last and not open_chunk.request.in_flight else last


def cost_of(state: SchedulerState, limits: OffloadLimits, open_chunk: OpenChunk, unit: int) -> float:
    """Tokens that a unit costs."""
    length = open_chunk.chunk.length
    if unit % (open_chunk.groups + 1) == open_chunk.groups:
        return limits.cost_of_rest(length)
    return limits.cost_of_group(length, state.kv.page_size)


def note_unfinished(state: SchedulerState, plan: BatchPlan, unfinished: int) -> None:
    """A step has come back, and left so many units of its chunk undone."""
    chunk = state.open_chunk
    if chunk is not None and any(part.chunk is chunk.chunk for part in plan.slices):
        chunk.unfinished = unfinished


def lease_of(request: Request) -> OffloadLease:
    assert isinstance(request.lease, OffloadLease), f"request {request.id} is offloaded with {request.lease}"
    return request.lease

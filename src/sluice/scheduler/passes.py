"""The passes that fill a step, and the two tables of them.

MIXED fills one batch from all passes, decodes first: no token budget is left to prefill before every running request
has its token, so a stream never waits for a prompt. PREFILL_FIRST fills a batch with prefill and lets decodes run
only in steps that have none.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType

from sluice.scheduler.batch import BatchBuilder
from sluice.scheduler.prefill import AddResult, PrefillAdder
from sluice.scheduler.request import Request
from sluice.scheduler.retract import make_room
from sluice.scheduler.state import SchedulerState
from sluice.types import SchedulerLimits

Pass = Callable[[SchedulerState, SchedulerLimits, BatchBuilder, PrefillAdder], None]


def decode(state: SchedulerState, limits: SchedulerLimits, batch: BatchBuilder, adder: PrefillAdder) -> None:
    """One token for every running request whose prompt is planned and whose samples are not too far behind."""
    ready = [r for r in state.decoding.values() if wants_decode(r, limits.lookahead)]
    page_size = state.kv.page_size
    needy = [r for r in ready if r.lease is not None and r.scheduled == len(r.lease.pages) * page_size]
    if len(needy) > state.kv.available:
        make_room(state, needy)
        ready = sorted((r for r in ready if r.id in state.decoding), key=lambda r: r.id)
    for request in ready:
        assert request.lease is not None, f"request {request.id} decodes without pages"
        if state.kv.missing(request.lease, request.scheduled + 1) <= state.kv.available:
            batch.promise(request, 1)


def wants_decode(request: Request, lookahead: int) -> bool:
    """Not too many samples unread, and more to generate than is on its way."""
    return request.pending <= lookahead and request.num_outputs + request.pending < request.max_tokens


def partial(state: SchedulerState, limits: SchedulerLimits, batch: BatchBuilder, adder: PrefillAdder) -> None:
    """The next chunk of each prompt that is half computed: it holds a slot and pages, so it goes before new ones."""
    for request in list(state.partial.values()):
        if request.id in state.partial:
            adder.add_partial(request)


def admit(state: SchedulerState, limits: SchedulerLimits, batch: BatchBuilder, adder: PrefillAdder) -> None:
    """Waiting requests in queue order, until one is cut or refused: at most one prompt is half computed."""
    while state.waiting and not state.partial:
        if adder.add_one_req(state.waiting.head()) is not AddResult.CONTINUE:
            break


TABLES: Mapping[str, tuple[tuple[Pass, ...], ...]] = MappingProxyType(
    {
        "mixed": ((decode, partial, admit),),
        "prefill-first": ((partial, admit), (decode,)),
    }
)
"""Name of a schedule -> groups of passes; the first group that fills anything is the step."""

"""Loading back: a prefix that lies on a tier behind the device is brought there before its request is computed.

A request with such a prefix leaves the queue as soon as there is a slot and memory for all of it, even if the step has
used up its other budgets: reading needs none of them. It is LOADING until its copies have ended, well or not, and then
continues from what they loaded, as if it had just been admitted. Meanwhile the others run. Only the request itself
waits for the disk, and requests that need the same pages (`prefix_dedup.is_follower`).
"""

from __future__ import annotations

from sluice.scheduler.admission import kind_of, start_load
from sluice.scheduler.batch import BatchBuilder
from sluice.scheduler.prefill import PrefillAdder
from sluice.scheduler.prefix_dedup import is_follower
from sluice.scheduler.state import SchedulerState
from sluice.types import SchedulerLimits


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

"""Loading back: a prefix that lies on a tier behind the device is brought there before its request is computed.

Whoever has one leaves the queue as soon as there is a slot and memory for all of it, whatever the step has left of its
other budgets: reading takes none of them. It is LOADING until its copies have ended, well or not, and then goes on from
what came of them as if it had just been admitted. Meanwhile the others run, and nobody waits for a disk but it and
those who want the same pages (`twins.is_follower`).
"""

from __future__ import annotations

from sluice.kv.lower_tiers import NoTiers
from sluice.scheduler.batch import BatchBuilder
from sluice.scheduler.offloading import is_offloaded
from sluice.scheduler.prefill import PrefillAdder
from sluice.scheduler.prefix_dedup import is_follower
from sluice.scheduler.state import SchedulerState
from sluice.types import SchedulerLimits


def load_back(state: SchedulerState, limits: SchedulerLimits, batch: BatchBuilder, adder: PrefillAdder) -> None:
    """Start what loads there is room for, in the policy's order. Those who need none keep their place: what they will
    need is left to them."""
    kv = state.kv
    if isinstance(kv.tiers, NoTiers) or not state.free_slots:
        return
    slots, pages = 0, 0
    for request in state.waiting.candidates(kv):
        if is_follower(state, request):
            continue
        nodes = []
        if not is_offloaded(kv, request):
            nodes = kv.loadable(request.tokens, request.path, request.cacheable, request.extra_key)
        if nodes and len(state.free_slots) > slots and adder.start_load(request, nodes, pages):
            continue
        slots, pages = slots + 1, pages + adder.needs(request)
        if len(state.free_slots) <= slots or kv.available < pages:
            break

"""Which kind of lease a request gets, when that is decided, and for how long it holds."""

from __future__ import annotations

from array import array
from typing import Any

import pytest

from sluice.kv.manager import KVManager, ResidentLease
from sluice.kv.offload import OffloadLease
from sluice.scheduler.admission import OFFLOADED, RESIDENT, admit, check_fits, kind_of
from sluice.scheduler.batch import BatchBuilder
from sluice.scheduler.prefill import AddResult, PrefillAdder
from sluice.scheduler.request import Request, Status
from sluice.scheduler.state import SchedulerState
from sluice.testing import resolved
from sluice.types import CopyDone, Submit, TierLimits
from worlds import limits_of, offload_of


def state_of(*, num_pages: int = 12, offload: dict[str, Any] | None = None, disk_pages: int = 40) -> SchedulerState:
    limits = (
        None if offload is None else offload_of(**{"page_bytes": 1, "window_pages": 3, "chunk_tokens": 4} | offload)
    )
    kv = KVManager(num_pages=num_pages, page_size=2, tiers=TierLimits(disk_pages=disk_pages), offload=limits)
    return SchedulerState(kv, limits_of(running=4))


def waiting(state: SchedulerState, request_id: int, length: int, max_tokens: int = 2) -> Request:
    request = Request(Submit(request_id, (request_id,) * length, resolved(max_tokens)))
    state.add(request)
    return request


def adder_of(state: SchedulerState) -> PrefillAdder:
    return PrefillAdder(state, limits_of(chunk=64, running=4), BatchBuilder())


def test_the_kind_is_chosen_when_a_request_gets_its_slot_and_anew_after_a_preemption() -> None:
    """A window leaves too little of the device for the second request. Once the window is gone, there is room."""
    state = state_of(offload={"above": 24})
    long, second = waiting(state, 0, 30), waiting(state, 1, 18)
    assert kind_of(state.kv, long) is OFFLOADED
    assert kind_of(state.kv, second) is RESIDENT
    assert admit(adder_of(state), long) is AddResult.CONTINUE
    assert isinstance(long.lease, OffloadLease)
    assert kind_of(state.kv, second) is OFFLOADED, "the answer for a waiting request is tentative"
    assert admit(adder_of(state), second) is AddResult.CONTINUE
    state.preempt(long)
    assert second.status is Status.OFFLOADED
    assert isinstance(second.lease, OffloadLease), "it is held until the request leaves its slot"
    state.preempt(second)
    assert kind_of(state.kv, second) is RESIDENT
    assert admit(adder_of(state), second) is AddResult.CONTINUE
    assert isinstance(second.lease, ResidentLease)


@pytest.mark.parametrize(
    ("offload", "length", "message"),
    [
        (None, 23, "prompt of 23 tokens \\+ max_tokens 2 exceed the KV pool of 24 tokens"),
        ({"above": 8}, 79, "need 41 bytes on the disk tier, which has 40"),
    ],
)
def test_a_request_that_no_lease_could_hold_is_refused(
    offload: dict[str, Any] | None, length: int, message: str
) -> None:
    state = state_of(offload=offload)
    check_fits(state.kv, waiting(state, 0, length - 1))
    with pytest.raises(ValueError, match=message):
        check_fits(state.kv, waiting(state, 1, length))


def load(state: SchedulerState, request: Request) -> None:
    """Bring what is cached of a request to the device; the request is ready then."""
    kv = state.kv
    kv.pool.give(kv.tree.evict(kv.tree.num_evictable))
    lease = kv.acquire([], "")
    lease.start_load(kv.loadable(request.tokens, [], request.cacheable, ""))
    state.load(request, lease)
    for copy in kv.tiers.take_copies()[0]:
        ended = kv.copied(CopyDone(copy.ticket))
        if ended is not None:
            state.loaded(ended)


def test_a_request_that_is_loaded_twice_has_its_cached_tokens_counted_once() -> None:
    """Preempted between its load and its first chunk, it would have more tokens from the disk than cached ones."""
    state = state_of()
    request, kv = waiting(state, 0, 5), state.kv
    first = kv.acquire([], "")
    first.extend(4)
    first.release(array("i", [0] * 4), 4)
    for copy in kv.tiers.take_copies()[0]:
        kv.copied(CopyDone(copy.ticket))
    load(state, request)
    state.preempt(request)
    load(state, request)
    state.begin(request)
    assert (request.num_cached_tokens, request.num_host_tokens, request.num_disk_tokens) == (4, 0, 4)


def test_memory_that_a_preemption_frees_is_there_at_once() -> None:
    """Counted as reserved for the victim still, it would be of no use to the request that the victim made way for."""
    limits = limits_of(running=4, reserve="full", policy="priority", priority_preemption=True)
    state = SchedulerState(KVManager(num_pages=10, page_size=1), limits)
    victim, urgent = (Request(Submit(i, (i, i), resolved(7), priority=i)) for i in range(2))
    state.add(victim)
    adder = PrefillAdder(state, limits, BatchBuilder())
    assert admit(adder, victim) is AddResult.CONTINUE
    victim.in_flight = victim.pending = 0  # its step has come back
    state.add(urgent)
    assert admit(PrefillAdder(state, limits, BatchBuilder()), urgent) is AddResult.CONTINUE
    assert victim.status is Status.WAITING

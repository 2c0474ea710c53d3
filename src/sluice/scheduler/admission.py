"""Admission: which kind of lease a waiting request gets, and what it takes to get it.

    resident    all of its context is to be on the device; it is admitted with a first chunk of its prompt
    offloaded   its context is longer than the device can hold; it is admitted without a chunk, and `offloading.py`
                plans its work

`prefix_match.is_offloaded` is the one place that decides. Its answer counts when a request gets a slot, and holds until
the request leaves the slot; a request that was preempted, or is resumed by another engine, gets a new answer. While a
request waits, the answer is tentative: windows of offloaded requests come and go.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from sluice.kv.manager import KVManager, ResidentLease
from sluice.kv.nodes import Node
from sluice.scheduler.budget import UNLIMITED
from sluice.scheduler.preempt import preempt_for
from sluice.scheduler.prefill import AddResult, PrefillAdder
from sluice.scheduler.prefix_match import cached_len, is_offloaded, usable_pages
from sluice.scheduler.request import Request
from sluice.scheduler.state import SchedulerState
from sluice.types import Bound, why_none_longer

NO_ROOM = (AddResult.NO_TOKEN, AddResult.NO_SLOT)
"""Refusals after which no other request is admitted in the step: small ones would keep taking what this one needs."""


class LeaseKind(Protocol):
    """One way to hold the context of a request."""

    takes_prefill: bool
    """Whether a request is admitted with a chunk, which counts against the step's budgets."""

    def needs(self, state: SchedulerState, request: Request) -> int:
        """Return the pages of the device that a waiting request must get to start, beyond those that it shares. Its
        path must be up to date."""
        ...

    def loadable(self, state: SchedulerState, request: Request) -> list[Node]:
        """Return the nodes that are to be loaded before the request starts."""
        ...

    def admit(self, adder: PrefillAdder, request: Request, at_most: int, *, may_cut: bool) -> AddResult:
        """Give a waiting request a slot and a lease, if there is room; a slot must be free.

        Args:
            at_most: most tokens of its first chunk.
            may_cut: whether that chunk may be less than all that is to be computed.
        """
        ...


class Resident:
    """All of the context on the device, for as long as the request has its slot."""

    takes_prefill = True

    def needs(self, state: SchedulerState, request: Request) -> int:
        return state.kv.pages_for(state.reservation.tokens_at_admission(request)) - usable_pages(state.kv, request)

    def loadable(self, state: SchedulerState, request: Request) -> list[Node]:
        return state.kv.loadable(request.tokens, request.path, request.cacheable, request.extra_key)

    def admit(self, adder: PrefillAdder, request: Request, at_most: int, *, may_cut: bool) -> AddResult:
        state = adder.state
        cached = cached_len(state.kv, request)
        extend_len = request.horizon - cached
        length, cut_by = adder.fit(cached, extend_len, at_most)
        if length == 0:
            adder.note(cut_by)
            return AddResult.OTHER
        is_cut = adder.leaves_it_partial(cached, length, extend_len)
        if is_cut and not (may_cut and state.places_taken(request) < adder.limits.max_partial_prefills):
            adder.note(Bound.MAX_PARTIAL_PREFILLS)
            return AddResult.OTHER
        lease = hold_prefix(adder, request, self.needs(state, request), 0)
        if lease is None:
            return AddResult.NO_TOKEN
        adder.note(cut_by)
        state.start(request, lease)
        adder.add_first(request, length, at_most, is_new=True)
        return AddResult.CONTINUE


class Offloaded:
    """The context on a tier, and a window of it on the device."""

    takes_prefill = False

    def needs(self, state: SchedulerState, request: Request) -> int:
        return state.kv.offload.limits.window_pages

    def loadable(self, state: SchedulerState, request: Request) -> list[Node]:
        return []

    def admit(self, adder: PrefillAdder, request: Request, at_most: int, *, may_cut: bool) -> AddResult:
        """Admit a request with all the memory that it will ever have, or with as much of it as a step may reserve;
        `open_further` reserves the rest. If it must wait for a window or for the tier,
        which only requests of its kind use, the others are admitted all the same: the result is CONTINUE."""
        state, kv = adder.state, adder.state.kv
        if kv.offload.is_busy:
            return AddResult.CONTINUE  # for some steps: nothing is short
        if not kv.offload.has_window:
            adder.note(Bound.KV_PAGES)
            return AddResult.CONTINUE
        needed = self.needs(state, request)
        if needed + adder.reserved.total() > kv.available or not adder.reserved.fit_beside_loads((), needed):
            adder.note(Bound.KV_PAGES)
            return AddResult.NO_TOKEN
        lease = None
        if not adder.tier_is_full:
            length, cacheable = request.prompt_len + request.max_tokens, request.cacheable
            if kv.offload.limits.decode_lag and not kv.offload.limits.selects_ahead:
                # The policy needs the keys of all pages, which a chunk of the prompt shows it.
                cacheable = min(cacheable, request.prompt_len - 1)
            lease = kv.offload.open(request.tokens, cacheable, length, request.extra_key)
        if lease is None:
            adder.tier_is_full = True
            adder.note(Bound.TIER_PAGES)
            return AddResult.CONTINUE
        state.start_offloaded(request, lease)
        return AddResult.CONTINUE


RESIDENT, OFFLOADED = Resident(), Offloaded()


def kind_of(kv: KVManager, request: Request) -> LeaseKind:
    """Return the kind of lease that a request gets if it is admitted now."""
    return OFFLOADED if is_offloaded(kv, request) else RESIDENT


class NoTier(ValueError):
    """A request needs a tier that this engine runs without, although an engine before had it."""


def open_further(state: SchedulerState) -> bool:
    """Continue in a new step with what takes several of them: reserve more pages of the tier for the request that was
    admitted last, and give back those of requests that have ended.

    Returns:
        False if the tier has no room for the request any more, so that it waits again.
    """
    if not state.kv.can_offload:
        return True
    pool = state.kv.offload
    pool.begin_step()
    lease = pool.opening
    if lease is None:
        return True
    request = next(each for each in state.offloaded.values() if each.lease is lease)
    if pool.open_further(lease, request.tokens, request.cacheable):
        state.opened_further(request, lease)
        return True
    state.set_back(request)
    return False


def check_fits(kv: KVManager, request: Request) -> None:
    """
    Raises:
        NoTier: an offloaded lease could hold the request, but its tier is disabled.
        ValueError: no kind of lease could ever hold the request.
    """
    length = request.prompt_len + request.max_tokens
    pages = kv.pages_for(length)
    if pages <= kv.num_pages:
        return
    asked = f"prompt of {request.prompt_len} tokens + max_tokens {request.max_tokens}"
    if not kv.can_offload:
        exceed = f"{asked} exceed the KV pool of {kv.num_pages * kv.page_size} tokens"
        if kv.disabled_tiers:
            raise NoTier(f"{exceed}, and {why_none_longer(kv.disabled_tiers[0])}")
        raise ValueError(exceed)
    limits, there = kv.offload.limits, kv.offload.num_pages
    if pages > there:
        raise ValueError(
            f"{asked} need {pages * limits.page_bytes} bytes on the {limits.tier} tier, which has"
            f" {there * limits.page_bytes}"
        )


def admit(adder: PrefillAdder, request: Request, at_most: int = UNLIMITED, *, may_cut: bool = True) -> AddResult:
    """Admit a waiting request to this step. Where priorities may preempt, requests of lower ones are preempted for it
    as long as that helps.

    Args:
        at_most: most tokens of its first chunk.
        may_cut: whether that chunk may be less than all that is to be computed, if one more prompt may be half
            computed.
    """
    result = _admit_once(adder, request, at_most, may_cut)
    while adder.limits.priority_preemption and result in NO_ROOM and preempt_for(adder.state, request):
        adder.reserved.recount()
        result = _admit_once(adder, request, at_most, may_cut)
    return result


def _admit_once(adder: PrefillAdder, request: Request, at_most: int, may_cut: bool) -> AddResult:
    if not adder.state.free_slots:
        adder.note(Bound.MAX_RUNNING_REQUESTS)
        return AddResult.NO_SLOT
    return kind_of(adder.state.kv, request).admit(adder, request, at_most, may_cut=may_cut)


def admit_without_chunk(adder: PrefillAdder, waiting: Sequence[Request]) -> tuple[list[Request], bool]:
    """Admit those of the waiting requests that take nothing of the step's prefill budget.

    Returns:
        The other requests, and whether one was refused for want of a slot or of pages.
    """
    others: list[Request] = []
    at_once: list[Request] = []
    for request in waiting:
        (others if kind_of(adder.state.kv, request).takes_prefill else at_once).append(request)
    results = [admit(adder, request) for request in at_once]
    return others, any(result in NO_ROOM for result in results)


def start_load(adder: PrefillAdder, request: Request, nodes: list[Node], ahead: int) -> bool:
    """Bring the nodes behind a waiting request's path to the device for it, if there is memory for the whole request
    and for `ahead` pages of others.

    Pages that copies from a disk are on their way to cannot be taken back before the disk has answered. So they may
    never be so many that the oldest running request, which gets what it needs by preempting others, would wait for
    them.
    """
    lease = hold_prefix(adder, request, RESIDENT.needs(adder.state, request) + ahead, len(nodes))
    if lease is None:
        return False
    lease.start_load(nodes)
    adder.state.load(request, lease)
    adder.reserved.recount()
    return True


def hold_prefix(adder: PrefillAdder, request: Request, needed: int, to_load: int) -> ResidentLease | None:
    """Hold the cached prefix of a waiting request, if `needed` pages are available beyond those reserved for others.

    They are counted for the whole request, so that no prompt is started that cannot be ended; before the prefix is held
    and again after, because holding it takes pages out of those that can be evicted.
    """
    kv = adder.state.kv
    needed += adder.reserved.total()
    if needed > kv.available or not adder.reserved.fit_beside_loads((request,), to_load):
        adder.note(Bound.KV_PAGES)
        return None
    lease = kv.acquire(request.path[: usable_pages(kv, request)], request.extra_key)
    if needed > kv.available:
        adder.note(Bound.KV_PAGES)
        lease.release(request.tokens, lease.capacity)
        return None
    return lease

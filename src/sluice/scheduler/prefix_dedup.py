"""Prefix dedup: of several requests with the same uncached prefix, one computes it and the others wait for its pages.

A waiting request follows a running one, the leader, if both have the same cached prefix, the next page of their tokens
is the same, and the leader has not computed that page yet. It is held back for as long as that is so: until the page is
published, or the leader ends. Nothing has to be remembered. Under the policy `deadline` a request does not wait for a
leader with a later deadline, which would have it wait as long as itself, unless the page is planned already.

Where layers have recurrent states, pages alone are no use. There a request follows one that will make a record of their
common tokens.
"""

from __future__ import annotations

from sluice.kv.manager import KVManager
from sluice.scheduler.prefix_match import cached_pages, usable_pages
from sluice.scheduler.request import Request, Status
from sluice.scheduler.state import SchedulerState


def is_follower(state: SchedulerState, request: Request) -> bool:
    """Return whether the next page that a waiting request needs is being computed or loaded for another one. Brings
    the request's `path` up to date."""
    kv = state.kv
    count = cached_pages(kv, request)
    if state.states is not None:
        by_deadline, due = state.waiting.by_deadline, request.ttft_deadline
        leaders = (other for other in state.computing.values() if not by_deadline or other.ttft_deadline <= due)
        return state.states.awaits_record(request, count * kv.page_size, leaders)
    end = (count + 1) * kv.page_size
    if end > request.cacheable or not kv.tree.enabled:
        return False
    if kv.tiers.num_loading and kv.is_loading(request.tokens, request.path, request.cacheable, request.extra_key):
        return True
    if not state.computing:
        return False
    wanted = kv.next_page(request.tokens, request.path, count, request.extra_key)
    return any(
        other.lease is not None
        and len(other.lease.path) == count
        and kv.next_page(other.tokens, other.lease.path, count, other.extra_key) == wanted
        for other in state.computing.values()
        if not state.waiting.by_deadline or other.scheduled >= end or other.ttft_deadline <= request.ttft_deadline
    )


def are_duplicates(kv: KVManager, one: Request, other: Request) -> bool:
    """Return whether two requests wait for the same page: if one of them is admitted, the other will be held back.
    Their paths must be up to date."""
    if not (one.status is other.status is Status.WAITING and kv.tree.enabled):
        return False
    count, its = usable_pages(kv, one), usable_pages(kv, other)
    if kv.records is not None:
        place = (one.prompt_len - 1) // kv.records.grid * kv.records.grid
        return its * kv.page_size < place <= other.cacheable and one.begins_like(other, place)
    return (count + 1) * kv.page_size <= min(one.cacheable, other.cacheable) and (
        kv.next_page(one.tokens, one.path, count, one.extra_key)
        == kv.next_page(other.tokens, other.path, its, other.extra_key)
    )

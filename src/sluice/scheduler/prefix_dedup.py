"""Twins: of several requests with the same uncached prefix one computes it and the others wait for its pages.

A waiting request follows a running one if both have the same cached prefix and the next page of their tokens is the
same, and the running one has not computed that page yet. It is held back for as long as that holds, which ends with
the page's publication, or with the other's end: nothing has to be remembered.
"""

from __future__ import annotations

from sluice.kv.manager import KVManager
from sluice.scheduler.queue import cached_len
from sluice.scheduler.request import Request, Status
from sluice.scheduler.state import SchedulerState


def is_follower(state: SchedulerState, request: Request) -> bool:
    """Somebody is computing, or loading, the next page this waiting request needs. Brings its `path` up to date."""
    kv = state.kv
    end = cached_len(kv, request) + kv.page_size
    if end > request.cacheable or not kv.tree.enabled:
        return False
    if kv.tiers.num_loading and kv.is_loading(request.tokens, request.path, request.cacheable, request.extra_key):
        return True
    if not state.computing:
        return False
    wanted = kv.next_page(request.tokens, request.path, request.extra_key)
    return any(
        other.lease is not None
        and len(other.lease.path) == len(request.path)
        and kv.next_page(other.tokens, other.lease.path, other.extra_key) == wanted
        for other in state.computing.values()
    )


def are_duplicates(kv: KVManager, one: Request, other: Request) -> bool:
    """Both wait for the same page: were one of them admitted, the other would be held back. Paths are up to date."""
    return (
        one.status is other.status is Status.WAITING
        and kv.tree.enabled
        and (len(one.path) + 1) * kv.page_size <= min(one.cacheable, other.cacheable)
        and kv.next_page(one.tokens, one.path, one.extra_key) == kv.next_page(other.tokens, other.path, other.extra_key)
    )

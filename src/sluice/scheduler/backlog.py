"""How much prefill an engine has before it."""

from __future__ import annotations

from array import array

from sluice.kv.manager import KVManager
from sluice.kv.nodes import Node
from sluice.scheduler.prefix_match import find_anywhere
from sluice.scheduler.request import Request
from sluice.scheduler.state import SchedulerState


def queued_prefill_tokens(state: SchedulerState) -> int:
    """Return how many prompt tokens are not computed and in no cache, of all requests. A waiting request is compared
    with the cache as it is now. What it remembers of the cache is brought up to date; no plan is changed by that."""
    begun = sum(max(0, request.prefill_end - request.computed) for request in state.seated())
    others = (*state.waiting, *state.compiling.values(), *state.adapters.requests.values())
    return begun + sum(len(request.tokens) - _cached_len(state.kv, request) for request in others)


def _cached_len(kv: KVManager, request: Request) -> int:
    """Return how many of a waiting request's tokens are cached, on the device or behind it, as far as was searched.
    Only what has changed since the last time is searched: engines are asked once a second."""
    find_anywhere(kv, request)
    return kv.usable(request.found) * kv.page_size


def cached_anywhere(kv: KVManager, tokens: array[int], most: int, extra_key: str) -> int:
    """Return how many of a prompt's first tokens, at most `most`, it would not have to compute: those in whole cached
    pages, on the device or behind it."""
    found: list[Node] = []
    kv.tree.match_any(found, tokens, most, extra_key)
    return kv.usable(found) * kv.page_size

"""How much of a waiting request is cached: on the device, and on all tiers together."""

from __future__ import annotations

from sluice.kv.manager import KVManager
from sluice.kv.nodes import Node
from sluice.scheduler.request import Request

FOUND_AT_ONCE = 4096
"""Most pages that one question adds to what a request has found: 3 ms, for which streams stand still."""


def cached_len(kv: KVManager, request: Request) -> int:
    """Return how many tokens of a waiting request are cached on the device now, as far as it may use them. Brings its
    `path` up to date."""
    return cached_pages(kv, request) * kv.page_size


def cached_pages(kv: KVManager, request: Request) -> int:
    """Return how many nodes these tokens have: of the request's `path`, which it brings up to date, those behind which
    it can go on."""
    kv.match(request.tokens, request.cacheable, request.extra_key, request.path)
    return usable_pages(kv, request)


def usable_pages(kv: KVManager, request: Request) -> int:
    """Return the same of a request whose `path` is up to date. Asked several times a step for each that waits."""
    name = usable_name(kv, request)
    if request.usable_name != name:
        request.usable, request.usable_name = kv.usable(request.path), name
    return request.usable


def usable_name(kv: KVManager, request: Request) -> tuple[int, int, Node | None]:
    """Return a name for the path of a request and for what its nodes have. Under an equal name the count of those that
    it can use is the same: the last node tells which the others are."""
    path = request.path
    return (kv.usable_version, len(path), path[-1] if path else None)


def find_anywhere(kv: KVManager, request: Request, most: int = FOUND_AT_ONCE) -> None:
    """Bring the `found` of a waiting request up to date. Of a very long prompt each call finds `most` pages more."""
    if len(request.found) < len(request.path):
        request.found = list(request.path)
    limit = min(request.cacheable, (len(request.found) + most) * kv.page_size)
    kv.tree.match_any(request.found, request.tokens, limit, request.extra_key)


def reusable_len(kv: KVManager, request: Request, most: int = FOUND_AT_ONCE) -> int:
    """Return how many tokens of a waiting request it will not have to compute, if nothing is evicted before it starts:
    those cached on the device, and those that it would load from a tier, or read there. Pages on their way to a tier
    count as well. Brings its `path` and `found` up to date, `found` as `find_anywhere` does."""
    cached = cached_len(kv, request)
    if not kv.tiers.order:
        return cached
    find_anywhere(kv, request, most)
    if is_offloaded(kv, request):
        return kv.offload.num_readable(request.found) * kv.page_size
    return cached + kv.num_loadable(len(request.found) - len(request.path)) * kv.page_size


def is_offloaded(kv: KVManager, request: Request) -> bool:
    """Return whether a request would be offloaded if it were admitted now.

    A context, prompt and output, is offloaded if it is longer than the device; or, if the tier can hold it, if it is
    longer than `OffloadLimits.above`, or than what windows leave of the device now. Else it would wait until an
    offloaded request ends, and others behind it.
    """
    if not kv.can_offload:
        return False
    length = request.prompt_len + request.max_tokens
    pages = kv.pages_for(length)
    if length <= kv.offload.limits.above and pages <= kv.num_pages - kv.num_window_pages:
        return False
    return pages > kv.num_pages or pages <= kv.offload.num_pages

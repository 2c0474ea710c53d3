"""Laws of the pages and slots of the device: 1, 2, 3 and 5."""

from __future__ import annotations

from array import array
from collections import Counter

from sluice.kv.manager import KVManager, ResidentLease
from sluice.kv.prefix_cache import PrefixTree
from sluice.kv.tiers import Tiers
from sluice.scheduler.request import Request
from sluice.testing.laws.view import View

TOKEN_BYTES = array("i").itemsize


class LawBroken(AssertionError):
    """A law does not hold; the message says which, and where."""


def slots_are_conserved(view: View) -> None:
    """1, for slots: every slot is free or held by one live request."""
    slots = sorted([*view.state.free_slots, *(request.slot for request in view.live)])
    if slots != list(range(view.state.num_slots)):
        raise LawBroken(f"law 1: slots {slots} of {view.state.num_slots}")


def pages_are_conserved(view: View) -> None:
    """1. Every page is free, in the tree, about to be loaded, or private to one request: exactly one of them."""
    kv = view.kv
    owned = [*kv.pool.free_pages(), *(node.page for node in view.nodes if node.page >= 0)]
    if isinstance(kv.tiers, Tiers):
        owned += [page for load in kv.tiers.loads for page in load.pages]
    for request in view.live:
        if request.lease is None:
            raise LawBroken(f"law 1: request {request.id} is {request.status} without a lease")
    for _, lease in view.resident:
        owned += lease.private_pages
    windows = [page for _, offloaded in view.offloaded for page in offloaded.window]
    if len(windows) != kv.num_window_pages:
        raise LawBroken(f"law 1: offloaded requests hold {len(windows)} pages, {kv.num_window_pages} are counted")
    owned += windows
    if sorted(owned) != list(range(kv.num_pages)):
        owners = Counter(owned)
        wrong = {page: owners[page] for page in range(kv.num_pages) if owners[page] != 1}
        raise LawBroken(f"law 1: owners of pages {wrong}, {len(owners)} seen")


def references_are_counted(view: View) -> None:
    """2. A tree page's count is the number of live requests whose path holds it; no child's count is larger."""
    held = Counter(id(node) for _, lease in view.resident for node in lease.path)
    evictable = 0
    for node in view.nodes:
        if node.refs != held[id(node)]:
            raise LawBroken(f"law 2: {node} is held by {held[id(node)]} requests")
        for child in node.children.values():
            if child.refs > node.refs:
                raise LawBroken(f"law 2: a child of {node} is held more often than it")
        evictable += node.refs == 0 and node.page >= 0
    if evictable != view.kv.tree.num_evictable:
        raise LawBroken(f"law 2: {evictable} pages are evictable, the tree counts {view.kv.tree.num_evictable}")


def tree_is_reachable(view: View) -> None:
    """3. A walk from the roots finds exactly the tree's pages. The ancestors of a node on the device are there too, and
    a node that is not on the device is on a tier. Each is a full page. A leaf that no path holds is queued for
    eviction."""
    kv = view.kv
    if not isinstance(kv.tree, PrefixTree):
        return
    count = 0
    for node in view.nodes:
        linked = node.parent is not None and node.parent.children.get(node.key) is node
        if not linked:
            raise LawBroken(f"law 3: {node} is not its parent's child under its key")
        resident = 0
        for child in node.children.values():
            resident += child.page >= 0
        if resident != node.resident:
            raise LawBroken(f"law 3: {node} counts {node.resident} of {resident} children on the device")
        if node.page < 0:
            if not (node.copies is not None and node.copies.is_kept):
                raise LawBroken(f"law 3: {node} is in the tree and lies nowhere")
            if not (resident == 0 and node.refs == 0):
                raise LawBroken(f"law 3: {node} is not on the device, but what follows it is")
            continue
        count += 1
        if len(node.key) != kv.page_size * TOKEN_BYTES:
            raise LawBroken(f"law 3: {node} is a page of {len(node.key) // TOKEN_BYTES} tokens of {kv.page_size}")
        if not (node.refs > 0 or resident > 0 or kv.tree.is_offered(node)):
            raise LawBroken(f"law 3: {node} is a leaf that no path holds, and is not queued for eviction")
    if count != kv.tree.num_pages:
        raise LawBroken(f"law 3: {count} pages reachable, the tree counts {kv.tree.num_pages}")


def pages_cover_the_promise(kv: KVManager, request: Request, lease: ResidentLease) -> None:
    """5. A row has the pages that its promised tokens, its drafts in flight and its open chunk need, and no more; and
    that of the next token, where its last row brought nothing or fewer tokens than it might have; and those of the
    block that its last row computed, which is computed again."""
    promised = request.scheduled + request.drafts if request.sliced is None else request.sliced.chunk.end
    held, needed = len(lease.pages), kv.pages_for(promised)
    may_hold_next = request.submit.grammar or request.num_drafted
    if may_hold_next and request.scheduled == request.computed and not request.drafts and held > needed:
        needed = kv.pages_for(request.scheduled + 1)
    keeps_its_block = request.block_size and request.scheduled == request.computed and held > needed
    if keeps_its_block:
        needed = kv.pages_for(request.scheduled + request.block_size)
    if held != needed:
        raise LawBroken(f"law 5: request {request.id} holds {held} pages, {needed} are promised")
    path, full = lease.path, request.computed // kv.page_size
    if [node.page for node in path] != lease.pages[: len(path)]:
        raise LawBroken(f"law 5: request {request.id} reads pages {lease.pages}, its path is {path}")
    if len(path) > full:
        raise LawBroken(
            f"law 5: request {request.id} has published {len(path)} pages with {request.computed} tokens computed"
        )

"""Laws 1, 2, 3, 5 and 6 for the tiers behind the device: their pages, offloaded requests and loads."""

from __future__ import annotations

from collections import Counter

from sluice.kv.flights import NodeStore, OffloadStore
from sluice.kv.nodes import Node
from sluice.kv.offload import OffloadLease
from sluice.kv.tiers import Tiers
from sluice.scheduler.prefix_match import usable_name
from sluice.scheduler.request import Request, Status
from sluice.scheduler.state import SchedulerState
from sluice.testing.laws.pages import LawBroken
from sluice.testing.laws.view import View


def tiers_are_conserved(view: View) -> None:
    """1 and 3, for the tiers behind the device: every page there is free, a node's, on its way to a node, private to
    a request, or retired, and every node that may give its page up is queued for eviction."""
    kv, nodes = view.kv, view.nodes
    if not isinstance(kv.tiers, Tiers):
        return
    read = [node for load in kv.tiers.loads for node in load.nodes]
    read += [node for path, _ in offloaded_pages(view) for node in path]
    gone = {id(node): node for node in read if node.copies is not None and node.copies.gone}
    stores = [copy for copy in kv.tiers.flights.tickets.values() if isinstance(copy, NodeStore)]
    for tier in kv.tiers.pools:
        level = tier.level
        owned = [*tier.pool.free_pages(), *tier.private, *tier.retired]
        owned += [store.page for store in stores if store.level == level]
        owned += [
            node.copies.pages[level]
            for node in (*nodes, *gone.values())
            if node.copies is not None and node.copies.pages[level] >= 0
        ]
        if not (len(owned) == len(set(owned)) == tier.pool.num_pages):
            wrong = {page: count for page, count in Counter(owned).items() if count != 1}
            raise LawBroken(f"law 1: owners of {tier.tier} {wrong}, {len(owned)} of {tier.pool.num_pages} pages seen")
        for node in nodes:
            copies = node.copies
            if not (copies is not None and not copies.gone):
                raise LawBroken(f"law 3: {node} is in the tree and has left it")
            assert copies is not None
            children = 0
            for child in node.children.values():
                kept = child.copies
                children += kept is not None and (kept.pages[level] >= 0 or kept.storing[level])
            if children != copies.children[level]:
                raise LawBroken(f"law 3: {node} counts {copies.children} of {children} children")
            if not (copies.pages[level] < 0 or children > 0 or copies.is_read or tier.is_offered(node)):
                raise LawBroken(f"law 3: {node} may leave {tier.tier} and is not queued for eviction")


def found_nodes_are_found_again(state: SchedulerState) -> None:
    """3, for what waiting requests remember of the tree: brought up to date, it is what a new search finds."""
    tree = state.kv.tree
    for request in (*state.waiting, *state.compiling.values(), *state.adapters.requests.values()):
        if request.found:
            remembered: list[Node] = list(request.found)
            anew: list[Node] = []
            for found in (remembered, anew):
                tree.match_any(found, request.tokens, request.cacheable, request.extra_key)
            if remembered != anew:
                raise LawBroken(f"law 3: request {request.id} remembers {len(remembered)} of {len(anew)} nodes")
        count = state.kv.usable(request.path)
        if request.usable_name == usable_name(state.kv, request) and request.usable != count:
            raise LawBroken(f"law 3: request {request.id} remembers {request.usable} usable nodes, there are {count}")


def offloaded_pages(view: View) -> list[tuple[list[Node], list[int]]]:
    """Return, for each offloaded lease and each that is over and has not given all back, the nodes that it reads and
    its own pages of the tier."""
    if not view.kv.can_offload:
        return []
    held = [(lease.path, lease.row[len(lease.path) :]) for _, lease in view.offloaded]
    return held + [(closed.path, closed.own) for closed in view.kv.offload.closing]


def offloaded_pages_are_conserved(view: View) -> None:
    """1, for offloaded requests: the private pages of a tier are theirs, or are being written for one that has left."""
    kv, tiers = view.kv, view.kv.tiers
    if not isinstance(tiers, Tiers) or not kv.can_offload:
        return
    limits = kv.offload.limits
    private = Counter(page for _, own in offloaded_pages(view) for page in own)
    private.update(
        copy.page for copy in tiers.flights.tickets.values() if isinstance(copy, OffloadStore) and copy.owner.is_closed
    )
    there = tiers.pools[tiers.order.index(limits.tier)].private
    if private != Counter(there):
        raise LawBroken(f"law 1: pages {private} of offloaded requests, {there} are private")
    level = tiers.order.index(limits.tier)
    readers = Counter(id(node) for path, _ in offloaded_pages(view) for node in path)
    nodes = {id(node): node for node in view.nodes}
    nodes |= {id(node): node for path, _ in offloaded_pages(view) for node in path}
    for key, node in nodes.items():
        counted = 0 if node.copies is None else node.copies.readers
        if counted != readers[key]:
            raise LawBroken(f"law 2: {node} counts {counted} of {readers[key]} readers")
    if tiers.num_read != len(readers):
        raise LawBroken(f"law 2: {tiers.num_read} nodes are read, {len(readers)} have readers")
    for request, lease in view.offloaded:
        pages = [node.copies.pages[level] for node in lease.path if node.copies is not None]
        if not (pages == lease.row[: len(lease.path)] and len(lease.path) <= lease.stored):
            raise LawBroken(f"law 5: request {request.id} reads {lease.row}, its path lies on {pages}")


def offloaded_pages_cover_the_promise(state: SchedulerState, request: Request, lease: OffloadLease) -> None:
    """5, for offloaded requests: all of the context has a page on the tier before any of it is computed; what is not
    stored yet, or is read by a step in flight, has a page on the device."""
    kv, chunk = state.kv, state.open_chunk
    needed = kv.pages_for(request.prompt_len + request.max_tokens)
    if lease.is_opening:
        is_begun = lease.bases or request.scheduled > len(lease.path) * kv.page_size
        if is_begun or lease is not kv.offload.opening or lease.num_pages != needed:
            raise LawBroken(f"law 5: request {request.id} has begun, or waits for ever, with {lease} of {needed} pages")
    elif len(lease.row) != needed:
        raise LawBroken(f"law 5: request {request.id} holds {len(lease.row)} of {needed} pages")
    promised = request.scheduled + request.drafts if chunk is None or chunk.request is not request else chunk.chunk.end
    if not (
        lease.known <= lease.stored <= lease.sent <= request.computed // kv.page_size
        and kv.pages_for(promised) <= lease.end_of_window
        and all(base <= lease.stored for base in lease.bases)
    ):
        raise LawBroken(
            f"law 5: request {request.id} with {request.computed} tokens computed and {promised} promised has {lease}"
        )


def loads_are_apart(view: View) -> None:
    """6, for loads: at most one request, a LOADING one, waits for each, and exactly the nodes of loads are marked. A
    load is over as soon as none of its copies is left to begin or to end."""
    tiers = view.kv.tiers
    waited_for = Counter(id(lease.load) for _, lease in view.resident if lease.load is not None)
    loads = tiers.loads if isinstance(tiers, Tiers) else []
    if not waited_for.keys() <= {id(load) for load in loads}:
        raise LawBroken("law 6: a request waits for a load that is over")
    if not all(count == 1 for count in waited_for.values()):
        raise LawBroken("law 6: two requests wait for one load")
    if not all(lease.load is None for request, lease in view.resident if request.status is not Status.LOADING):
        raise LawBroken("law 6: a request that runs waits for a load")
    marked = {id(node) for node in view.nodes if node.copies is not None and node.copies.is_loading}
    loading = {id(node) for load in loads for node in load.nodes if node.copies is not None and not node.copies.gone}
    if marked != loading:
        raise LawBroken(f"law 6: {len(marked)} nodes are marked as loading, {len(loading)} are")
    for load in loads:
        if not (
            len(load.nodes) == len(load.pages) == len(load.sources) and 0 <= load.open <= load.begun <= len(load.nodes)
        ):
            raise LawBroken(
                f"law 6: {len(load.nodes)} nodes go to {len(load.pages)} pages, {load.begun} begun, {load.open} open"
            )
        if not (load.open > 0 or load.begun < len(load.nodes)):
            raise LawBroken(f"law 6: a load of {len(load.nodes)} nodes does not end")

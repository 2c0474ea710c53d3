"""What must hold at every moment, one function a law. Used by the tests, the simulator and for debugging.

The numbers are those of the design. Laws 1-6 are about the state, 7-10 about a plan, 11 and 12 about a whole run,
15 about the end of one. (13, all modes agree, and 14, it is a function, need several runs; they live in the tests.)
`Lawful` wraps a scheduler and checks them after every call.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from sluice.kv.flights import OffloadStore, Store
from sluice.kv.manager import KVManager
from sluice.kv.offload_lease import OffloadLease
from sluice.kv.prefix import PrefixTree
from sluice.kv.tiers import Tiers
from sluice.scheduler.fair import DUE_AFTER
from sluice.scheduler.offloading import ALONE
from sluice.scheduler.request import Request, Status
from sluice.scheduler.reserve import PROTECT_AFTER
from sluice.scheduler.scheduler import Scheduler
from sluice.scheduler.state import SchedulerState
from sluice.types import (
    BatchPlan,
    BatchResult,
    Chunk,
    ChunkSlice,
    CopyDone,
    FinishReason,
    Occupancy,
    Output,
    SamplingParams,
    SchedulerLimits,
    StoredPage,
)


class LawBroken(AssertionError):
    """A law does not hold; the message says which, and where."""


def require(holds: bool, message: str) -> None:
    if not holds:
        raise LawBroken(message)


def live(state: SchedulerState) -> list[Request]:
    """The requests that hold pages."""
    places = (state.loading, state.partial, state.decoding, state.offloaded, state.draining)
    return [request for place in places for request in place.values()]


def offloaded_leases(state: SchedulerState) -> list[tuple[Request, OffloadLease]]:
    """Of these, the ones whose context is longer than the device."""
    return [(request, request.offload) for request in live(state) if request.offload is not None]


def check_state(state: SchedulerState) -> None:
    """Laws 1-6."""
    pages_are_conserved(state)
    references_are_counted(state)
    tree_is_reachable(state.kv)
    tiers_are_conserved(state)
    offloaded_pages_are_conserved(state)
    loads_are_apart(state)
    for request in state.requests.values():
        counters_are_ordered(request)
    for request in live(state):
        if request.offload is None:
            pages_cover_the_promise(state.kv, request)
    for request, lease in offloaded_leases(state):
        offloaded_pages_cover_the_promise(state, request, lease)
    everyone_is_in_one_place(state)
    slots_are_conserved(state)


def pages_are_conserved(state: SchedulerState) -> None:
    """1. Every page is free, in the tree, about to be loaded, or private to one request: exactly one of them."""
    owners = Counter(state.kv.pool.free_pages())
    owners.update(node.page for node in state.kv.tree.nodes() if node.page >= 0)
    if isinstance(state.kv.tiers, Tiers):
        owners.update(page for load in state.kv.tiers.loads for page in load.pages)
    for request in live(state):
        held = [kind for kind in (request.lease, request.offload) if kind is not None]
        require(len(held) == 1, f"law 1: request {request.id} runs on {held}")
        owners.update(request.lease.private_pages if request.lease is not None else ())
    windows = [page for _, lease in offloaded_leases(state) for page in lease.window]
    owners.update(windows)
    require(
        len(windows) == state.kv.num_window_pages,
        f"law 1: offloaded requests hold {len(windows)} pages, {state.kv.num_window_pages} are counted",
    )
    wrong = {page: owners[page] for page in range(state.kv.num_pages) if owners[page] != 1}
    require(not wrong and len(owners) == state.kv.num_pages, f"law 1: owners of pages {wrong}, {len(owners)} seen")


def references_are_counted(state: SchedulerState) -> None:
    """2. A tree page's count is the number of live requests whose path holds it; no child's count is larger."""
    held = Counter(id(node) for request in live(state) if request.lease for node in request.lease.path)
    evictable = 0
    for node in state.kv.tree.nodes():
        require(node.refs == held[id(node)], f"law 2: {node} is held by {held[id(node)]} requests")
        require(
            all(child.refs <= node.refs for child in node.children.values()),
            f"law 2: a child of {node} is held more often than it",
        )
        evictable += node.refs == 0 and node.page >= 0
    require(
        evictable == state.kv.tree.num_evictable,
        f"law 2: {evictable} pages are evictable, the tree counts {state.kv.tree.num_evictable}",
    )


def tree_is_reachable(kv: KVManager) -> None:
    """3. Walking from the roots finds exactly the tree's pages; whoever lies on the device has its ancestors there, and
    whoever does not lies elsewhere; whoever nobody holds can be evicted, leaves first."""
    if not isinstance(kv.tree, PrefixTree):
        return
    count = 0
    for node in kv.tree.nodes():
        linked = node.parent is not None and node.parent.children.get(node.key) is node
        require(linked, f"law 3: {node} is not its parent's child under its key")
        resident = sum(child.page >= 0 for child in node.children.values())
        require(resident == node.resident, f"law 3: {node} counts {node.resident} of {resident} children on the device")
        if node.page < 0:
            require(node.copies is not None and node.copies.is_kept, f"law 3: {node} is in the tree and lies nowhere")
            require(resident == 0 and node.refs == 0, f"law 3: {node} is not on the device, but what follows it is")
            continue
        count += 1
        require(
            node.refs > 0 or resident > 0 or kv.tree.is_offered(node),
            f"law 3: {node} is a leaf nobody holds, and eviction does not know it",
        )
    require(count == kv.tree.num_pages, f"law 3: {count} pages reachable, the tree counts {kv.tree.num_pages}")


def tiers_are_conserved(state: SchedulerState) -> None:
    """1 and 3, for the tiers behind the device: every page there is free, a node's, on its way to one, or private to a
    request; and whoever may give one up is known."""
    kv = state.kv
    if not isinstance(kv.tiers, Tiers):
        return
    nodes = list(kv.tree.nodes())
    read = [node for load in kv.tiers.loads for node in load.nodes]
    read += [node for _, lease in offloaded_leases(state) for node in lease.path]
    gone = {id(node): node for node in read if node.copies is not None and node.copies.gone}
    stores = [copy for copy in kv.tiers.tickets.values() if isinstance(copy, Store)]
    for tier in kv.tiers.pools:
        place = tier.place
        owners = Counter(tier.pool.free_pages())
        owners.update(kv.tiers.private[place])
        owners.update(store.page for store in stores if store.tier == place)
        for node in (*nodes, *gone.values()):
            if node.copies is not None and node.copies.pages[place] >= 0:
                owners[node.copies.pages[place]] += 1
        wrong = {page: count for page, count in owners.items() if count != 1}
        require(not wrong and len(owners) == tier.pool.num_pages, f"law 1: owners of {tier.tier} {wrong}")
        for node in nodes:
            copies = node.copies
            require(copies is not None and not copies.gone, f"law 3: {node} is in the tree and has left it")
            assert copies is not None
            kept = [child.copies for child in node.children.values()]
            children = sum(each is not None and (each.pages[place] >= 0 or each.storing[place]) for each in kept)
            require(
                children == copies.children[place], f"law 3: {node} counts {copies.children} of {children} children"
            )
            require(
                copies.pages[place] < 0 or children > 0 or copies.is_read or tier.is_offered(node),
                f"law 3: {node} may leave {tier.tier}, which does not know it",
            )


def offloaded_pages_are_conserved(state: SchedulerState) -> None:
    """1, for offloaded requests: what is private on a tier is theirs, or on its way to where one was that has left."""
    tiers = state.kv.tiers
    if not isinstance(tiers, Tiers) or not state.kv.can_offload:
        return
    limits = state.kv.offload.limits
    private = Counter(page for _, lease in offloaded_leases(state) for page in lease.row[len(lease.path) :])
    private.update(
        copy.page for copy in tiers.tickets.values() if isinstance(copy, OffloadStore) and copy.lease.is_closed
    )
    there = tiers.private[tiers.order.index(limits.tier)]
    require(private == Counter(there), f"law 1: pages {private} of offloaded requests, {there} are private")
    place = tiers.order.index(limits.tier)
    readers = Counter(id(node) for _, lease in offloaded_leases(state) for node in lease.path)
    nodes = {id(node): node for node in state.kv.tree.nodes()}
    nodes |= {id(node): node for _, lease in offloaded_leases(state) for node in lease.path}
    for key, node in nodes.items():
        counted = 0 if node.copies is None else node.copies.readers
        require(counted == readers[key], f"law 2: {node} counts {counted} of {readers[key]} readers")
    require(tiers.num_read == len(readers), f"law 2: {tiers.num_read} nodes are read, {len(readers)} have readers")
    for request, lease in offloaded_leases(state):
        pages = [node.copies.pages[place] for node in lease.path if node.copies is not None]
        require(
            pages == lease.row[: len(lease.path)] and len(lease.path) <= lease.stored,
            f"law 5: request {request.id} reads {lease.row}, its path lies on {pages}",
        )


def offloaded_pages_cover_the_promise(state: SchedulerState, request: Request, lease: OffloadLease) -> None:
    """5, for offloaded requests: all of the context has its page on the tier, and what is not there yet, or is looked
    at by a step in flight, its place on the device."""
    kv, chunk = state.kv, state.open_chunk
    needed = kv.pages_for(request.prompt_len + request.max_tokens)
    require(len(lease.row) == needed, f"law 5: request {request.id} holds {len(lease.row)} of {needed} pages")
    promised = request.scheduled if chunk is None or chunk.request is not request else chunk.chunk.end
    require(
        lease.told <= lease.stored <= lease.sent <= request.computed // kv.page_size
        and kv.pages_for(promised) <= lease.end_of_window
        and all(base <= lease.stored for base in lease.bases),
        f"law 5: request {request.id} with {request.computed} tokens computed and {promised} promised has {lease}",
    )


def loads_are_apart(state: SchedulerState) -> None:
    """6, for loads: each has at most one request, which is loading; its nodes are marked, and no others."""
    tiers = state.kv.tiers
    waited_for = Counter(id(r.lease.load) for r in live(state) if r.lease is not None and r.lease.load is not None)
    loads = tiers.loads if isinstance(tiers, Tiers) else []
    require(waited_for.keys() <= {id(load) for load in loads}, "law 6: a request waits for a load that is over")
    require(all(count == 1 for count in waited_for.values()), "law 6: two requests wait for one load")
    require(
        all(r.lease is None or r.lease.load is None for r in live(state) if r.status is not Status.LOADING),
        "law 6: a request that runs waits for a load",
    )
    marked = {id(node) for node in state.kv.tree.nodes() if node.copies is not None and node.copies.is_loading}
    loading = {id(node) for load in loads for node in load.nodes if node.copies is not None and not node.copies.gone}
    require(marked == loading, f"law 6: {len(marked)} nodes are marked as loading, {len(loading)} are")
    for load in loads:
        require(
            len(load.nodes) == len(load.pages) == len(load.sources) and 0 <= load.open <= load.begun <= len(load.nodes),
            f"law 6: {len(load.nodes)} nodes go to {len(load.pages)} pages, {load.begun} begun, {load.open} open",
        )


def counters_are_ordered(request: Request) -> None:
    """4. cached <= computed <= scheduled <= known + pending; a request that waits has promised nothing."""
    known = len(request.tokens) + request.pending
    if request.status is Status.WAITING:
        counters = (request.computed, request.scheduled, request.pending, request.in_flight)
        require(counters == (0, 0, 0, 0), f"law 4: request {request.id} waits with counters {counters}")
        require(request.lease is None and request.slot == -1, f"law 4: request {request.id} waits with pages")
    ended = request.finish_reason is not None  # its rows in flight may have run past its end
    require(
        0 <= request.cached <= request.computed <= request.scheduled and (ended or request.scheduled <= known),
        f"law 4: request {request.id}: cached {request.cached}, computed {request.computed},"
        f" scheduled {request.scheduled}, known and pending {known}",
    )
    require(
        0 <= request.pending <= request.in_flight,
        f"law 4: request {request.id}: {request.pending} samples pending in {request.in_flight} rows",
    )
    require(
        request.num_outputs <= request.max_tokens,
        f"law 4: request {request.id}: {request.num_outputs} outputs of at most {request.max_tokens}",
    )
    require(
        0 <= request.prompt_logprobs_sent <= request.num_targets
        and (request.status is Status.WAITING or is_told(request)),
        f"law 4: request {request.id}: {request.prompt_logprobs_sent} of {request.num_targets} prompt logprobs told,"
        f" {request.cached} tokens cached and {request.computed} computed",
    )
    if request.status is Status.DECODING:
        require(
            known - request.scheduled <= 1,
            f"law 4: request {request.id} decodes with {known - request.scheduled} tokens left to compute",
        )


def is_told(request: Request) -> bool:
    """What was taken from the cache or computed has been told, as far as it is asked for."""
    return request.prompt_logprobs_sent >= min(request.computed, request.num_targets)


def pages_cover_the_promise(kv: KVManager, request: Request) -> None:
    """5. A row has the pages its promised tokens need and no more."""
    assert request.lease is not None
    held, needed = len(request.lease.pages), kv.pages_for(request.scheduled)
    require(held == needed, f"law 5: request {request.id} holds {held} pages, {needed} are promised")
    path, full = request.lease.path, request.computed // kv.page_size
    require(
        [node.page for node in path] == request.lease.pages[: len(path)],
        f"law 5: request {request.id} reads pages {request.lease.pages}, its path is {path}",
    )
    require(
        len(path) <= full,
        f"law 5: request {request.id} has published {len(path)} pages with {request.computed} tokens computed",
    )


def everyone_is_in_one_place(state: SchedulerState) -> None:
    """6. A request is waiting, loading, partial, decoding or draining: exactly one, and it says so itself."""
    places = Counter(request.id for request in state.waiting)
    for place, members in (
        (Status.LOADING, state.loading),
        (Status.PARTIAL, state.partial),
        (Status.DECODING, state.decoding),
        (Status.OFFLOADED, state.offloaded),
        (Status.DRAINING, state.draining),
    ):
        places.update(members.keys())
        for request in members.values():
            require(request.status is place, f"law 6: request {request.id} is {request.status}, stored in {place}")
    for request in state.waiting:
        require(request.status is Status.WAITING, f"law 6: request {request.id} waits but is {request.status}")
    require(
        places == Counter(state.requests.keys()),
        f"law 6: places {dict(places)} for requests {sorted(state.requests)}",
    )
    require(
        all(request.in_flight > 0 for request in state.draining.values()),
        f"law 6: a request drains with nothing in flight: {sorted(state.draining)}",
    )
    prefilling = {request.id for request in state.running() if request.is_prefilling}
    require(
        state.computing.keys() == prefilling,
        f"law 6: prompts of {sorted(prefilling)} are being computed, not of {sorted(state.computing)}",
    )


def slots_are_conserved(state: SchedulerState) -> None:
    """1, for slots: every slot is free or held by one live request."""
    slots = sorted([*state.free_slots, *(request.slot for request in live(state))])
    require(slots == list(range(state.num_slots)), f"law 1: slots {slots} of {state.num_slots}")


def check_plan(state: SchedulerState, limits: SchedulerLimits, plan: BatchPlan) -> None:
    """Laws 7, 8 (one plan's part) and 9."""
    budgets_hold(state, limits, plan)
    chunks_are_well_formed(state, limits, plan)
    writes_are_private(state, plan)
    offloaded_work_is_paid_for(state, limits, plan)


def is_prefill(state: SchedulerState, chunk_start: int, request_id: int) -> bool:
    return chunk_start < state.requests[request_id].prefill_end


def budgets_hold(state: SchedulerState, limits: SchedulerLimits, plan: BatchPlan) -> None:
    """7. No plan is empty; tokens and prefill tokens are within their budgets; prefill-first mixes nothing."""
    contents = len(plan.chunks) + len(plan.slices) + len(plan.copies) + len(plan.dropped)
    require(contents > 0, f"law 7: plan {plan.step} is empty")
    tiers = state.kv.tiers
    if isinstance(tiers, Tiers):
        most = tiers.limits.copies_per_step
        require(len(plan.copies) <= most, f"law 7: plan {plan.step} makes {len(plan.copies)} copies of {most}")
        most = tiers.limits.copies_in_flight
        require(tiers.num_in_flight <= most, f"law 7: {tiers.num_in_flight} copies are in flight, of {most}")
    chunks = resident(plan)
    prefill = [c.length for c in chunks if is_prefill(state, c.start, c.request_id)]
    num_tokens = sum(chunk.length for chunk in chunks)
    total, page_size = sum(prefill), state.kv.page_size
    alone_unchunked = limits.chunked_prefill_size == 0 and len(prefill) == 1
    require(
        num_tokens <= limits.max_batch_tokens or alone_unchunked,
        f"law 7: plan {plan.step} has {num_tokens} tokens of {limits.max_batch_tokens}",
    )
    if limits.chunked_prefill_size:
        require(
            total <= limits.chunked_prefill_size,
            f"law 7: plan {plan.step} prefills {total} tokens of {limits.chunked_prefill_size}",
        )
    if limits.max_prefill_tokens and prefill:
        left = max(page_size, limits.max_prefill_tokens - (num_tokens - total))
        require(
            total <= left or alone_unchunked,
            f"law 7: plan {plan.step} prefills {total} tokens, {left} are left of {limits.max_prefill_tokens}",
        )
    if limits.long_prefill_token_threshold:
        require(
            max(prefill, default=0) <= limits.long_prefill_token_threshold,
            f"law 7: one prompt of plan {plan.step} takes {prefill} of {limits.long_prefill_token_threshold}",
        )
    if limits.max_prefill_requests:
        require(
            len(prefill) <= limits.max_prefill_requests,
            f"law 7: plan {plan.step} has {len(prefill)} prompts of {limits.max_prefill_requests}",
        )
    require(
        len(state.partial) <= limits.max_partial_prefills,
        f"law 7: {len(state.partial)} prompts are half computed, of {limits.max_partial_prefills}",
    )
    if limits.schedule == "prefill-first":
        require(
            len(prefill) in (0, len(chunks)),
            f"law 7: plan {plan.step} mixes prefill and decodes: {plan}",
        )


def chunks_are_well_formed(state: SchedulerState, limits: SchedulerLimits, plan: BatchPlan) -> None:
    """8, one plan: a row a request, decodes first, cuts on page boundaries, samples exactly at the end."""
    ids = [chunk.request_id for chunk in (*resident(plan), *(part.chunk for part in plan.slices))]
    require(len(set(ids)) == len(ids), f"law 8: plan {plan.step} has two rows of one request: {ids}")
    done = tuple(part.chunk for part in plan.slices if part.completes)
    require(plan.chunks[len(plan.chunks) - len(done) :] == done, f"law 8: plan {plan.step} ends with other than {done}")
    kinds = [is_prefill(state, chunk.start, chunk.request_id) for chunk in resident(plan)]
    require(kinds == sorted(kinds), f"law 8: plan {plan.step} has a decode behind a prefill")
    require(
        plan.num_decodes == kinds.count(False),
        f"law 8: plan {plan.step} says it has {plan.num_decodes} decodes, it has {kinds.count(False)}",
    )
    for chunk in plan.chunks:
        request = state.requests[chunk.request_id]
        require(chunk.length > 0, f"law 8: empty chunk {chunk}")
        require(chunk.slot == request.slot, f"law 8: {chunk} is not in slot {request.slot}")
        unread = chunk.length - len(chunk.token_ids)
        require(unread in (0, 1), f"law 8: {chunk} names {len(chunk.token_ids)} of {chunk.length} tokens")
        was_late = chunk in done  # the sample may have come since it was begun
        require(
            unread == 0 or was_late or request.pending > chunk.samples,
            f"law 8: {chunk} waits for a sample nobody makes",
        )
        require(
            chunk.samples == (chunk.end == len(request.tokens) + request.pending - chunk.samples),
            f"law 8: {chunk} samples={chunk.samples} with {len(request.tokens)} tokens known",
        )
        require(
            request.pending - chunk.samples <= limits.lookahead,
            f"law 8: {chunk} runs {request.pending - chunk.samples} samples ahead of {limits.lookahead}",
        )
        end = min(chunk.end, request.num_targets)
        asked = tuple(request.tokens[chunk.start + 1 : end + 1]) if request.prompt_logprobs_sent < end else ()
        require(chunk.targets == asked, f"law 8: {chunk} should have the targets {asked}")
        require(
            chunk.samples or chunk.end % state.kv.page_size == 0,
            f"law 8: {chunk} is cut inside a page of {state.kv.page_size}",
        )


def writes_are_private(state: SchedulerState, plan: BatchPlan) -> None:
    """9. No two rows write one page slot, and nobody writes a published page."""
    published = {node.page for node in state.kv.tree.nodes() if node.page >= 0}
    if isinstance(state.kv.tiers, Tiers):
        published.update(page for load in state.kv.tiers.loads for page in load.pages)
    written: set[tuple[int, int]] = set()
    size = state.kv.page_size
    chunks = {chunk: leases(state, chunk) for chunk in resident(plan)}
    chunks |= {part.chunk: [0] * (part.base // size) + list(part.pages) for part in plan.slices}
    for chunk, row in chunks.items():
        targets = {(row[at // size], at % size) for at in range(chunk.start, chunk.end)}
        require(written.isdisjoint(targets), f"law 9: plan {plan.step} writes twice to what {chunk} writes")
        pages = {page for page, _ in targets}
        require(published.isdisjoint(pages), f"law 9: {chunk} writes published pages {published & pages}")
        written |= targets


def resident(plan: BatchPlan) -> tuple[Chunk, ...]:
    """The chunks that are computed together: all but the offloaded ones."""
    return plan.chunks[: len(plan.chunks) - sum(part.completes for part in plan.slices)]


def leases(state: SchedulerState, chunk: Chunk) -> list[int]:
    lease = state.requests[chunk.request_id].lease
    assert lease is not None, f"{chunk} has no pages"
    return lease.pages


def offloaded_work_is_paid_for(state: SchedulerState, limits: SchedulerLimits, plan: BatchPlan) -> None:
    """7, for offloaded work: one part a step; with the prefill beside it, it costs no more than the step may, unless it
    is a single unit."""
    size = state.kv.page_size
    require(len(plan.slices) <= 1, f"law 7: plan {plan.step} works on {len(plan.slices)} offloaded chunks")
    for part in plan.slices:
        offload = state.kv.offload.limits
        length, per_layer = part.chunk.length, part.total // offload.num_layers
        require(
            per_layer - 1 == offload.groups(part.base // size, is_decode=part.is_decode)
            and per_layer * offload.num_layers == part.total,
            f"law 8: {part} has another number of units than its context",
        )
        rests = sum(unit % per_layer == per_layer - 1 for unit in range(part.first, part.stop))
        groups = part.stop - part.first - rests
        cost = rests * offload.cost_of_rest(length) + groups * offload.cost_of_group(length, size)
        most = min(limits.chunked_prefill_size or limits.max_batch_tokens, limits.max_batch_tokens)
        most *= 1 if resident(plan) else ALONE
        catches_up = state.open_chunk is not None and state.open_chunk.unfinished > 0 and part.stop == part.first
        require(
            catches_up or part.stop - part.first == 1 or (part.stop > part.first and cost <= most),
            f"law 7: {part} costs {cost} tokens of {most}",
        )
        require(
            not part.completes or not offload.may_be_late or per_layer == 1 or part.first == part.total - 1,
            f"law 7: the step of {part} may have to wait for what it reads",
        )
        require(
            not (is_prefill(state, part.chunk.start, part.chunk.request_id) and plan.num_decodes)
            or limits.schedule == "mixed",
            f"law 7: plan {plan.step} mixes prefill and decodes: {plan}",
        )


def quiet_means_empty(state: SchedulerState) -> None:
    """15. With no requests nothing is held, and after a flush every page is free."""
    require(not state.requests, f"law 15: requests {sorted(state.requests)} are left")
    require(
        len(state.free_slots) == state.num_slots,
        f"law 15: {len(state.free_slots)} of {state.num_slots} slots free",
    )
    state.kv.flush()
    uses = state.kv.tiers.uses()
    require(not state.kv.tiers.num_in_flight, f"law 15: {state.kv.tiers.num_in_flight} copies are in flight")
    require(not any(use.used for use in uses), f"law 15: pages of {uses} are held after a flush")
    require(
        state.kv.pool.num_free == state.kv.num_pages and state.kv.tree.num_pages == 0,
        f"law 15: {state.kv.pool.num_free} of {state.kv.num_pages} pages free after a flush",
    )


def steps_to_prefill(limits: SchedulerLimits, page_size: int, uncached: Sequence[int]) -> int:
    """12, for prompts: a bound on the steps until one is computed, under mixed steps with several partial prefills.

    Args:
        uncached: tokens to compute of the prompt and of all that came before it and are not done.

    It holds as long as there are pages and a slot for whoever came first; `fair.py` says who gets what. Each of the
    other half-computed prompts is due for a page at most once in `DUE_AFTER` steps. If all of them fit into half of
    the smallest step, the first has a quarter of it always. If not, or where chunks deep in a prompt are shorter, they
    take turns, and its own turn comes round in `DUE_AFTER + max_partial_prefills` steps.
    """
    decodes, partial = limits.max_running_requests, limits.max_partial_prefills
    room = min(limits.chunked_prefill_size, limits.max_batch_tokens - decodes)
    if limits.max_prefill_tokens:
        room = min(room, max(page_size, limits.max_prefill_tokens - decodes))
    tokens, turn = max(1, room // 4 // page_size), 1
    crowded = room < 2 * partial * page_size or 0 < limits.max_prefill_requests <= partial
    if crowded or limits.dynamic_chunking:
        tokens, turn = 1, DUE_AFTER + partial
    if limits.long_prefill_token_threshold:
        tokens = min(tokens, limits.long_prefill_token_threshold // page_size)
    return sum(-(-length // (tokens * page_size)) * turn for length in uncached)


class Lawful:
    """A scheduler under the eye of the law: the same verbs, and every law checked after each."""

    def __init__(self, scheduler: Scheduler) -> None:
        self.scheduler = scheduler
        self.state = scheduler.state
        self.in_flight: list[tuple[BatchPlan, dict[int, tuple[int, ...]]]] = []
        """Plans not committed, each with the page-table row of every request in it."""
        self.ended: dict[int, FinishReason] = {}
        self._next_start: dict[int, int] = {}
        self._rows: dict[int, list[int]] = {}
        self._stored_rows: dict[int, list[int]] = {}
        self._slices: dict[int, ChunkSlice] = {}
        """Request -> the latest part of a chunk of its that is not complete."""
        self._num_outputs: dict[int, int] = {}
        self._asked: dict[int, tuple[tuple[int, ...], SamplingParams]] = {}
        self._num_sent: dict[int, int] = {}

    @property
    def has_work(self) -> bool:
        return self.scheduler.has_work

    @property
    def awaits_copies(self) -> bool:
        return self.scheduler.awaits_copies

    def add(
        self,
        request_id: int,
        prompt: Sequence[int],
        sampling: SamplingParams,
        *,
        sample_index: int = 0,
        extra_key: str = "",
        priority: int = 0,
        output_ids: Sequence[int] = (),
        prompt_logprobs_sent: int = 0,
        is_resumed: bool = False,
    ) -> None:
        self.scheduler.add(
            request_id,
            prompt,
            sampling,
            sample_index=sample_index,
            extra_key=extra_key,
            priority=priority,
            output_ids=output_ids,
            prompt_logprobs_sent=prompt_logprobs_sent,
            is_resumed=is_resumed,
        )
        self._num_outputs[request_id], self._num_sent[request_id] = len(output_ids), prompt_logprobs_sent
        self._asked[request_id] = (tuple(prompt), sampling)
        check_state(self.state)

    def occupancy(self) -> Occupancy:
        return self.scheduler.occupancy()

    def abort(self, request_id: int, reason: FinishReason = FinishReason.ABORT) -> list[Output]:
        return self._told(self.scheduler.abort(request_id, reason))

    def flush_cache(self) -> int:
        pages = self.scheduler.flush_cache()
        check_state(self.state)
        return pages

    def restore(self, pages: Sequence[StoredPage]) -> int:
        taken = self.scheduler.restore(pages)
        check_state(self.state)
        return taken

    def forget_device(self) -> None:
        self.scheduler.forget_device()
        check_state(self.state)

    def schedule(self) -> BatchPlan | None:
        plan = self.scheduler.schedule()
        check_state(self.state)
        if plan is None:
            require(
                bool(self.in_flight) or not self.has_work or self.awaits_copies,
                f"law 12: nothing to plan, nothing in flight, and requests {sorted(self.state.requests)} wait",
            )
            require(
                bool(self.in_flight) or not any(self.state.running()),
                f"law 12: requests {[r.id for r in self.state.running()]} wait for a disk that is not theirs",
            )
            return None
        check_plan(self.state, self.scheduler.limits, plan)
        self._retractions_are_bounded()
        self._decodes_go_first(plan)
        self._chunks_tile(plan)
        rows = self._rows_follow(plan)
        self._writes_disturb_nobody(plan, rows)
        self.in_flight.append((plan, rows))
        self._nothing_in_flight_is_free()
        return plan

    def commit(self, plan: BatchPlan, result: BatchResult) -> list[Output]:
        require(self.in_flight[0][0] is plan, f"plan {plan.step} is committed out of order")
        del self.in_flight[0]
        return self._told(self.scheduler.commit(plan, result))

    def fail(self, plan: BatchPlan, error: str, *, launched: bool = True) -> list[Output]:
        require(self.in_flight[0][0] is plan, f"plan {plan.step} fails out of order")
        del self.in_flight[0]
        return self._told(self.scheduler.fail(plan, error, launched=launched))

    def copied(self, done: Sequence[CopyDone]) -> list[Output]:
        return self._told(self.scheduler.copied(done))

    def _told(self, outputs: list[Output]) -> list[Output]:
        """11. Every request ends exactly once, nothing comes after its end, and no token is skipped or repeated."""
        for output in outputs:
            require(output.request_id not in self.ended, f"law 11: {output} after the end of its request")
            seen = self._num_outputs[output.request_id]
            require(output.start == seen, f"law 11: {output} comes when {seen} tokens were sent")
            self._num_outputs[output.request_id] += len(output.token_ids)
            self._logprobs_are_told(output)
            if output.finish_reason is not None:
                self.ended[output.request_id] = output.finish_reason
        unfinished = {r.id for r in self.state.requests.values() if r.finish_reason is None}
        require(
            unfinished == self._num_outputs.keys() - self.ended.keys(),
            f"law 11: unfinished {unfinished}, without an end {self._num_outputs.keys() - self.ended.keys()}",
        )
        check_state(self.state)
        self._nothing_in_flight_is_free()
        return outputs

    def _logprobs_are_told(self, output: Output) -> None:
        """11, for log-probabilities: those asked for and no others; the prompt's once each and before its outputs."""
        prompt, asked = self._asked[output.request_id]
        told = tuple(item.token_id for item in output.logprobs)
        require(
            told == (() if asked.logprobs is None else output.token_ids),
            f"law 11: {output} has the logprobs of tokens {told}",
        )
        start = self._num_sent[output.request_id]
        end = self._num_sent[output.request_id] = start + len(output.prompt_logprobs)
        told = tuple(item.token_id for item in output.prompt_logprobs)
        targets = () if asked.prompt_logprobs is None else prompt[1:]
        require(
            told == targets[start:end] and (end == len(targets) or not output.token_ids),
            f"law 11: {output} tells of the prompt's tokens {told} when {start} of {len(targets)} were told",
        )

    def _retractions_are_bounded(self) -> None:
        """12. Nobody is sent back for ever; under full reservation nobody is retracted at all."""
        limits = self.scheduler.limits
        bound = 0 if limits.reserve == "full" else PROTECT_AFTER + limits.max_running_requests
        for request in self.state.requests.values():
            require(
                request.preemptions <= bound,
                f"law 12: request {request.id} was retracted {request.preemptions} times, {bound} at most",
            )

    def _decodes_go_first(self, plan: BatchPlan) -> None:
        """A mixed plan passes over a running request only for want of a page."""
        if self.scheduler.limits.schedule != "mixed":
            return
        planned = {chunk.request_id for chunk in plan.chunks}
        size = self.state.kv.page_size
        for request in self.state.decoding.values():
            ready = (
                request.pending <= self.scheduler.limits.lookahead
                and request.num_outputs + request.pending < request.max_tokens
            )
            at_boundary = request.scheduled % size == 0
            require(
                request.id in planned or not ready or (at_boundary and self.state.kv.available == 0),
                f"decode first: plan {plan.step} passes over request {request.id}",
            )

    def _chunks_tile(self, plan: BatchPlan) -> None:
        """8, over a run: a request's chunks follow each other without gap or overlap from its cached prefix on."""
        opened = {new.request_id for new in plan.new_slots}
        for part in plan.slices:
            request, before = self.state.requests[part.chunk.request_id], self._slices.pop(part.chunk.request_id, None)
            if part.first:
                goes_on = before is not None and before.chunk == part.chunk and before.stop == part.first
                require(goes_on, f"law 8: {part} follows {before}")
            elif request.id in opened:
                self._next_start[request.id] = request.cached
            opened.discard(request.id)
            start = self._next_start.get(request.id)
            require(part.chunk.start == start, f"law 8: {part} should start at {start}")
            if part.completes:
                self._next_start[request.id] = part.chunk.end
            else:
                self._slices[request.id] = part
        for chunk in resident(plan):
            request = self.state.requests[chunk.request_id]
            expected = request.cached if chunk.request_id in opened else self._next_start.get(chunk.request_id)
            require(chunk.start == expected, f"law 8: {chunk} should start at {expected}")
            self._next_start[chunk.request_id] = chunk.end
            opened.discard(chunk.request_id)
            if request.status is Status.WAITING:
                raise LawBroken(f"law 6: {chunk} of a request that waits")
        require(not opened, f"law 8: slots opened without a chunk: {opened}")

    def _rows_follow(self, plan: BatchPlan) -> dict[int, tuple[int, ...]]:
        """What the device's page table says of each row, rebuilt from the plans alone, is what the host thinks."""
        for new in plan.new_slots:
            self._rows[new.slot] = []
            self._stored_rows[new.slot] = []
        rows: dict[int, tuple[int, ...]] = {}
        for part in plan.slices:
            lease = self.state.requests[part.chunk.request_id].offload
            row = self._stored_rows[part.chunk.slot]
            row.extend(part.stored_pages)
            base = part.base // self.state.kv.page_size
            require(
                lease is not None and row == lease.row[: len(row)] and base <= min(len(row), lease.stored),
                f"law 5: {part} leaves row {row}, host has {lease}",
            )
            assert lease is not None
            end = self.state.kv.pages_for(part.chunk.end)
            require(part.pages == lease.places(base, end), f"law 5: {part} is not where {lease} has it")
            rows[part.chunk.request_id] = part.pages
        for chunk in resident(plan):
            row = self._rows[chunk.slot]
            row.extend(chunk.new_pages)
            held = self.state.requests[chunk.request_id].lease
            require(held is not None and row == held.pages, f"law 5: {chunk} leaves row {row}, host has {held}")
            rows[chunk.request_id] = tuple(row)
        return rows

    def _writes_disturb_nobody(self, plan: BatchPlan, rows: dict[int, tuple[int, ...]]) -> None:
        """9 and 10, over plans in flight: no row writes a page that a row of another request may be using."""
        size = self.state.kv.page_size
        bases = {part.chunk.request_id: part.base // size for part in plan.slices}
        for chunk in (*resident(plan), *(part.chunk for part in plan.slices)):
            base = bases.get(chunk.request_id, 0)
            written = set(rows[chunk.request_id][chunk.start // size - base : -(-chunk.end // size) - base])
            for earlier, used in self.in_flight:
                for request_id, pages in used.items():
                    require(
                        request_id == chunk.request_id or written.isdisjoint(pages),
                        f"law 10: {chunk} writes {written} while request {request_id} of plan {earlier.step} runs",
                    )

    def _nothing_in_flight_is_free(self) -> None:
        """10. No page or slot of an uncommitted plan is free or belongs to another request."""
        free = self.state.kv.pool.free_pages()
        holders = {request.slot: request.id for request in live(self.state)}
        for plan, rows in self.in_flight:
            for chunk in (*plan.chunks, *(part.chunk for part in plan.slices)):
                require(
                    holders.get(chunk.slot) == chunk.request_id,
                    f"law 10: slot {chunk.slot} of plan {plan.step} in flight is held by {holders.get(chunk.slot)}",
                )
            for request_id, pages in rows.items():
                require(
                    free.isdisjoint(pages),
                    f"law 10: pages {free & set(pages)} of request {request_id}, plan {plan.step} in flight, are free",
                )

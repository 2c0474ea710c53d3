"""Laws of one plan: 7, 8 and 9, and the bound of law 12 on the steps of a prompt."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from sluice.kv.manager import ResidentLease
from sluice.kv.offload import OffloadLease
from sluice.kv.tiers import Tiers
from sluice.scheduler.fair import DUE_AFTER
from sluice.scheduler.offloading import ALONE
from sluice.scheduler.pacer import QUANTUM
from sluice.scheduler.queue import is_by_deadline
from sluice.scheduler.state import SchedulerState
from sluice.testing.laws.pages import LawBroken
from sluice.testing.laws.view import live
from sluice.types import BatchPlan, Chunk, ChunkSlice, SchedulerLimits


def check_plan(state: SchedulerState, limits: SchedulerLimits, plan: BatchPlan, forced: Collection[int] = ()) -> None:
    """Check laws 7 and 9, and law 8 as far as it is about one plan.

    Args:
        forced: requests that had forced tokens to compute before the plan was made.
    """
    budgets_hold(state, limits, plan, forced)
    chunks_are_well_formed(state, limits, plan)
    writes_are_private(state, plan)
    drafts_are_few(state, limits, plan)
    offloaded_work_is_paid_for(state, limits, plan)
    layers_are_well_formed(limits, plan)
    selections_follow_from_positions(state, plan)


def is_prefill(state: SchedulerState, chunk_start: int, request_id: int) -> bool:
    """Return whether a chunk is of a prompt, or of what is computed again."""
    return chunk_start < state.requests[request_id].prefill_end


def budgets_hold(state: SchedulerState, limits: SchedulerLimits, plan: BatchPlan, forced: Collection[int] = ()) -> None:
    """7. No plan is empty. Tokens and prefill tokens are within their budgets, except that the end of one prompt may
    exceed the chunk size by up to a page. Forced tokens are prefill, but not prompts: they do not count in the number
    of prompts, and the first prompt may have a page beside any number of them. Under prefill-first no plan has both
    prefill and decodes."""
    contents = len(plan.chunks) + len(plan.slices) + len(plan.copies) + len(plan.dropped) + len(plan.saved)
    if contents <= 0:
        raise LawBroken(f"law 7: plan {plan.step} is empty")
    copies_are_bounded(state, plan)
    chunks = resident(plan)
    of_prefill = [c for c in chunks if is_prefill(state, c.start, c.request_id)]
    prefill = [c.length for c in of_prefill]
    of_streams = sum(c.length for c in of_prefill if c.request_id in forced)
    num_prompts = sum(c.request_id not in forced for c in of_prefill)
    num_tokens = sum(chunk.length for chunk in chunks)
    num_drafts = sum(chunk.num_drafts for chunk in chunks)
    total, page_size = sum(prefill), state.kv.page_size
    beside_forced = of_streams + page_size if of_streams and num_prompts else 0
    alone_unchunked = limits.chunked_prefill_size == 0 and (len(prefill) == 1 or num_prompts == 1)
    if not (num_tokens <= limits.max_batch_tokens or alone_unchunked):
        raise LawBroken(f"law 7: plan {plan.step} has {num_tokens} tokens of {limits.max_batch_tokens}")
    if limits.chunked_prefill_size:
        over = total - max(limits.chunked_prefill_size, beside_forced)
        ends = [c.length for c in chunks if (c.samples or c.embeds) and is_prefill(state, c.start, c.request_id)]
        if not (over <= 0 or (over <= page_size and over < max(ends, default=0))):
            raise LawBroken(f"law 7: plan {plan.step} prefills {total} tokens of {limits.chunked_prefill_size}")
    if limits.max_prefill_tokens and prefill:
        left = max(page_size, beside_forced, limits.max_prefill_tokens - (num_tokens - total - num_drafts))
        if not (total <= left or alone_unchunked):
            raise LawBroken(
                f"law 7: plan {plan.step} prefills {total} tokens, {left} are left of {limits.max_prefill_tokens}"
            )
    if limits.long_prefill_token_threshold and max(prefill, default=0) > limits.long_prefill_token_threshold:
        raise LawBroken(
            f"law 7: one prompt of plan {plan.step} takes {prefill} of {limits.long_prefill_token_threshold}"
        )
    if limits.max_prefill_requests and num_prompts > limits.max_prefill_requests:
        raise LawBroken(f"law 7: plan {plan.step} has {num_prompts} prompts of {limits.max_prefill_requests}")
    taken = max((state.places_taken(request) for request in state.partial.values()), default=0)
    if taken > limits.max_partial_prefills:
        raise LawBroken(f"law 7: {taken} prompts of a class are half computed, of {limits.max_partial_prefills}")
    if limits.schedule == "prefill-first" and len(prefill) not in (0, len(chunks)):
        raise LawBroken(f"law 7: plan {plan.step} mixes prefill and decodes: {plan}")


def copies_are_bounded(state: SchedulerState, plan: BatchPlan) -> None:
    """7, for copies between tiers: those of a step, and those in flight."""
    tiers = state.kv.tiers
    if isinstance(tiers, Tiers):
        most = tiers.limits.copies_per_step
        if len(plan.copies) > most:
            raise LawBroken(f"law 7: plan {plan.step} makes {len(plan.copies)} copies of {most}")
        most = tiers.limits.copies_in_flight
        if tiers.num_in_flight > most:
            raise LawBroken(f"law 7: {tiers.num_in_flight} copies are in flight, of {most}")


def chunks_are_well_formed(state: SchedulerState, limits: SchedulerLimits, plan: BatchPlan) -> None:
    """8, for one plan: each request has one row, decodes come first, and a chunk samples if and only if it reaches the
    end of what is known. Chunks are cut on page boundaries; where steps have a target and the context is on the device,
    on those of quanta."""
    ids = [chunk.request_id for chunk in (*resident(plan), *(each.chunk for each in working(plan)))]
    if len(set(ids)) != len(ids):
        raise LawBroken(f"law 8: plan {plan.step} has two rows of one request: {ids}")
    done = tuple(each.chunk for each in plan.slices if each.completes)
    if plan.chunks[len(plan.chunks) - len(done) :] != done:
        raise LawBroken(f"law 8: plan {plan.step} ends with other than {done}")
    of_pages = {each.chunk for each in offloaded(plan)}
    kinds = [is_prefill(state, chunk.start, chunk.request_id) for chunk in resident(plan)]
    if kinds != sorted(kinds):
        raise LawBroken(f"law 8: plan {plan.step} has a decode behind a prefill")
    if plan.num_decodes != kinds.count(False):
        raise LawBroken(f"law 8: plan {plan.step} says it has {plan.num_decodes} decodes, it has {kinds.count(False)}")
    cut = state.kv.page_size if state.pacer is None else state.pacer.quantum
    if limits.prefills_by_block:
        cut = limits.block_size
    for chunk in plan.chunks:
        request = state.requests[chunk.request_id]
        if chunk.length <= 0:
            raise LawBroken(f"law 8: empty chunk {chunk}")
        if chunk.slot != request.slot:
            raise LawBroken(f"law 8: {chunk} is not in slot {request.slot}")
        unread = chunk.length - len(chunk.token_ids)
        if unread not in (0, 1) and unread != chunk.num_drafts:
            raise LawBroken(f"law 8: {chunk} names {len(chunk.token_ids)} of {chunk.length} tokens")
        was_late = chunk in done or unread == chunk.num_drafts  # the sample may have come since it was begun
        if not (unread == 0 or was_late or request.pending > chunk.samples):
            raise LawBroken(f"law 8: {chunk} waits for a sample that no chunk makes")
        is_last = chunk.known_end == len(request.tokens) + request.pending - chunk.samples
        if request.block_size:
            is_last = is_last and chunk.num_drafts > 0
        if (chunk.samples, chunk.embeds) != (is_last and not request.embeds, is_last and request.embeds):
            raise LawBroken(
                f"law 8: {chunk} samples={chunk.samples} and embeds={chunk.embeds} with {len(request.tokens)} tokens"
                " known"
            )
        if request.pending - chunk.samples > request.lookahead:
            raise LawBroken(
                f"law 8: {chunk} runs {request.pending - chunk.samples} samples ahead of {request.lookahead}"
            )
        end = min(chunk.end, request.num_targets)
        asked = tuple(request.tokens[chunk.start + 1 : end + 1]) if request.prompt_logprobs_sent < end else ()
        if chunk.targets != asked:
            raise LawBroken(f"law 8: {chunk} should have the targets {asked}")
        # Law 21 says where chunks end behind a prompt whose decoded tokens attend to a selection.
        selects = chunk in of_pages and state.kv.offload.limits.decode_lag > 0 and chunk.end >= request.prompt_len
        if not (is_last or selects or chunk.end % (state.kv.page_size if chunk in of_pages else cut) == 0):
            raise LawBroken(f"law 8: {chunk} is cut inside {cut} tokens of a page of {state.kv.page_size}")


def writes_are_private(state: SchedulerState, plan: BatchPlan) -> None:
    """9. No two rows write the KV of one position of a page, and no row writes a published page."""
    published = {node.page for node in state.kv.tree.nodes() if node.page >= 0}
    if isinstance(state.kv.tiers, Tiers):
        published.update(page for load in state.kv.tiers.loads for page in load.pages)
    written: set[tuple[int, int]] = set()
    size = state.kv.page_size
    chunks = {chunk: row_of(state, chunk) for chunk in (*resident(plan), *(each.chunk for each in layered(plan)))}
    chunks |= {each.chunk: [0] * (each.base // size) + list(each.pages) for each in offloaded(plan)}
    for chunk, row in chunks.items():
        targets = {(row[at // size], at % size) for at in range(chunk.start, chunk.end)}
        if not written.isdisjoint(targets):
            raise LawBroken(f"law 9: plan {plan.step} writes twice to what {chunk} writes")
        pages = {page for page, _ in targets}
        if not published.isdisjoint(pages):
            raise LawBroken(f"law 9: {chunk} writes published pages {published & pages}")
        written |= targets


def tokens_of_row(chunk: Chunk) -> int:
    """Return how many tokens the row of a chunk is to bring: one if it samples."""
    return int(chunk.samples)


def offloaded(plan: BatchPlan) -> list[ChunkSlice]:
    """Return the slices of offloaded chunks."""
    return [each for each in plan.slices if not each.is_resident]


def layered(plan: BatchPlan) -> list[ChunkSlice]:
    """Return the slices of resident chunks, which are layers."""
    return [each for each in plan.slices if each.is_resident]


def resident(plan: BatchPlan) -> tuple[Chunk, ...]:
    """Return the chunks that are computed together: all but those of slices."""
    return plan.whole_chunks


def working(plan: BatchPlan) -> list[ChunkSlice]:
    """Return the slices with work items: all but one that begins a chunk."""
    return [each for each in plan.slices if each.stop]


def row_of(state: SchedulerState, chunk: Chunk) -> list[int]:
    """Return the pages of a resident chunk's request."""
    lease = state.requests[chunk.request_id].lease
    assert isinstance(lease, ResidentLease), f"{chunk} has {lease}"
    return lease.pages


def offloaded_work_is_paid_for(state: SchedulerState, limits: SchedulerLimits, plan: BatchPlan) -> None:
    """7, for offloaded work: one slice a step; with the prefill beside it, it costs no more than the step may, unless
    it is a single work item."""
    size = state.kv.page_size
    slices = offloaded(plan)
    at_work = [each for each in slices if each.stop]
    if len(at_work) > 1:
        raise LawBroken(f"law 7: plan {plan.step} works on {len(at_work)} offloaded chunks")
    begun = len(slices) - len(at_work)
    if not (begun <= 1 and not any(each.stop == 0 for each in slices[:-1])):
        raise LawBroken(f"law 7: plan {plan.step} begins {begun}")
    for each in slices:
        offload = state.kv.offload.limits
        if each.total != offload.items(each.base // size, each.chunk.length, is_decode=each.is_decode).total:
            raise LawBroken(f"law 8: {each} has another number of work items than its context")
        cost = cost_of_slice(state, each)
        most = min(limits.chunked_prefill_size or limits.max_batch_tokens, limits.max_batch_tokens)
        most *= 1 if resident(plan) else ALONE
        is_timed = state.pacer is not None  # then costs are those that were measured
        begins = offload.reports_loads and each.first == each.stop == 0
        if not (begins or each.stop - each.first == 1 or (each.stop > each.first and (is_timed or cost <= most))):
            raise LawBroken(f"law 7: {each} costs {cost} tokens of {most}")
        if not (
            not (is_prefill(state, each.chunk.start, each.chunk.request_id) and plan.num_decodes)
            or limits.schedule == "mixed"
        ):
            raise LawBroken(f"law 7: plan {plan.step} mixes prefill and decodes: {plan}")


def layers_are_well_formed(limits: SchedulerLimits, plan: BatchPlan) -> None:
    """8, for layers of resident chunks: they are layers of the model, in a pipeline of one round, and no chunk is
    longer than allowed, but for a page at the end of its prompt."""
    for each in layered(plan):
        items = limits.layer_items(each.chunk.length)
        if not (0 <= each.first < each.stop <= each.total == items.total):
            raise LawBroken(f"law 8: {each} of a model of {limits.num_layers} layers")
        if each.first // items.of_round != (each.stop - 1) // items.of_round:
            raise LawBroken(f"law 8: {each} has layers of several rounds, each of {items.of_round}")
        if each.chunk.length > limits.sliced_chunk_size:
            raise LawBroken(f"law 7: {each} is longer than {limits.sliced_chunk_size} tokens")


def selections_follow_from_positions(state: SchedulerState, plan: BatchPlan) -> None:
    """21. Where decoded tokens attend to a selection, each token behind a prompt is a chunk of its own that selects,
    also when it is computed again, and no more full pages before it than `decode_lag` are not on the tier."""
    slices, size = offloaded(plan), state.kv.page_size
    lag = state.kv.offload.limits.decode_lag if slices else 0
    for each in slices if lag else ():
        start, end = state.requests[each.chunk.request_id].prompt_len, each.chunk.end
        if each.is_decode and not (each.chunk.length == 1 and each.base // size >= each.chunk.start // size - lag):
            raise LawBroken(f"law 21: {each} selects by more than its position")
        if not each.is_decode and end > start:
            raise LawBroken(f"law 21: {each} of a prompt of {start} tokens attends to all")


def cost_of_slice(state: SchedulerState, each: ChunkSlice) -> float:
    """Return what a slice costs, in tokens of the step's budget."""
    offload, length = state.kv.offload.limits, each.chunk.length
    items = offload.items(each.base // state.kv.page_size, length, is_decode=each.is_decode)
    rests = sum(items.is_rest(item) for item in range(each.first, each.stop))
    groups = each.stop - each.first - rests
    return rests * offload.cost_of_rest(length) + groups * offload.cost_of_group(
        length, state.kv.page_size, is_decode=each.is_decode
    )


def steps_to_prefill(limits: SchedulerLimits, page_size: int, uncached: Sequence[int]) -> int:
    """Return law 12's bound on the steps until a prompt is computed, under mixed steps with several partial prefills.

    Args:
        uncached: tokens to compute of the prompt and of all that are before it and are not done: those that came before
            it, or under the policy `deadline` those with an earlier deadline, also of prompts that come after it.

    It holds as long as there are pages and a slot for the prompt that came first; `fair.py` describes the shares. Each
    of the other half-computed prompts is due for a page at most once in `DUE_AFTER` steps. If all of them fit into half
    of the smallest step, the first has a quarter of it always. If not, or where chunks deep in a prompt are shorter,
    they take turns, and its own turn comes round in `DUE_AFTER + max_partial_prefills` steps. So it does where steps
    have a target, with one quantum. With deadlines nothing is due to the others, so the first has half of each step, or
    a page; where steps have a target, a quantum in every other step. A chunk that is divided among steps, which is
    longer than a quantum, takes as many turns as it has work items at most: layers, or in a pipeline some more.
    """
    decodes, partial = limits.max_running_requests, limits.max_partial_prefills
    room = min(limits.chunked_prefill_size, limits.max_batch_tokens - decodes)
    if limits.max_prefill_tokens:
        room = min(room, max(page_size, limits.max_prefill_tokens - decodes))
    if is_by_deadline(limits):
        return _steps_by_deadline(limits, page_size, room, uncached)
    tokens, turn = max(1, room // 4 // page_size), 1
    crowded = room < 2 * partial * page_size or 0 < limits.max_prefill_requests <= partial
    if crowded or limits.dynamic_chunking:
        tokens, turn = 1, DUE_AFTER + partial
    if limits.itl_target:
        quantum, turn = min(QUANTUM, page_size), (DUE_AFTER + partial) * turns_of_chunk(limits)
        return sum(-(-length // quantum) * turn for length in uncached)
    if limits.long_prefill_token_threshold:
        tokens = min(tokens, limits.long_prefill_token_threshold // page_size)
    return sum(-(-length // (tokens * page_size)) * turn for length in uncached)


def turns_of_chunk(limits: SchedulerLimits) -> int:
    """Return the steps that a chunk takes at most."""
    return limits.layer_items(limits.sliced_chunk_size).total if limits.num_layers else 1


def _steps_by_deadline(limits: SchedulerLimits, page_size: int, room: int, uncached: Sequence[int]) -> int:
    """Return the bound of `steps_to_prefill` for prompts that go by their deadlines.

    Args:
        room: tokens of the smallest step.
    """
    tokens, turn = page_size if limits.dynamic_chunking else max(1, room // 2 // page_size) * page_size, 1
    if limits.itl_target:
        tokens, turn = min(QUANTUM, page_size), 2 * turns_of_chunk(limits)
    if limits.long_prefill_token_threshold:
        tokens = min(tokens, limits.long_prefill_token_threshold // page_size * page_size)
    return sum(-(-length // tokens) * turn for length in uncached)


def drafts_are_few(state: SchedulerState, limits: SchedulerLimits, plan: BatchPlan) -> None:
    """19, for a plan. A row has at most `num_draft_tokens` drafts, and no more than the tokens that its request may
    still have, but for one: that of the last draft. It computes tokens of an output behind which nothing is planned,
    samples, and scores no token of the prompt. Of a model that fills in blocks every chunk is whole blocks, and the
    masked positions of one are the rest of the block in which its request's tokens end."""
    size = limits.block_size
    for chunk in plan.chunks:
        if size and (chunk.start % size or chunk.end % size):
            raise LawBroken(f"law 19: {chunk} is not of whole blocks of {size}")
        if not chunk.num_drafts:
            continue
        request = state.requests[chunk.request_id]
        most = min(limits.num_draft_tokens, request.max_tokens - request.num_outputs - 1)
        if size and chunk.num_drafts != size - len(request.tokens) % size:
            raise LawBroken(
                f"law 19: {chunk} has {chunk.num_drafts} masked positions behind {len(request.tokens)} tokens"
            )
        if not size and chunk.num_drafts > most:
            raise LawBroken(f"law 19: {chunk} has {chunk.num_drafts} drafts of {most}")
        if (request.pending, request.scheduled, request.drafts) != (1, chunk.known_end, chunk.num_drafts):
            raise LawBroken(f"law 19: {chunk} has drafts, and {request.pending} tokens of its request are pending")
        if not chunk.samples or chunk.targets or chunk.known_end < len(request.tokens):
            raise LawBroken(f"law 19: {chunk} has drafts behind tokens that are not the last")


class Openings:
    """20. A step that others wait for finds and reserves at most `OffloadLimits.pages_per_step` pages for requests that
    begin.

    Nothing is said of a call with nothing in flight that plans no decode: nobody waits for it.
    """

    def __init__(self) -> None:
        self._pages: dict[int, int] = {}
        """Request -> pages of its context that it had on the tier."""
        self._is_awaited = False

    def before(self, state: SchedulerState) -> None:
        """Note what requests hold before a step is planned."""
        self._pages = _pages(state)
        self._is_awaited = state.num_in_flight > 0

    def check(self, state: SchedulerState, plan: BatchPlan | None) -> None:
        """Check what was found and reserved while a step was planned."""
        if not state.kv.can_offload or not (self._is_awaited or (plan is not None and plan.num_decodes)):
            return
        most = state.kv.offload.limits.pages_per_step
        count = sum(max(0, pages - self._pages.get(request, 0)) for request, pages in _pages(state).items())
        if count > most:
            raise LawBroken(
                f"law 20: step {state.step} found and reserved {count} pages of a tier, {most} are its share"
            )


def _pages(state: SchedulerState) -> dict[int, int]:
    leases = ((request.id, request.lease) for request in live(state))
    return {request: len(lease.row) for request, lease in leases if isinstance(lease, OffloadLease)}

"""Law 17: no budget of a step stays unused while a started prompt lacks tokens."""

from __future__ import annotations

import math

from sluice.kv.manager import ResidentLease
from sluice.scheduler.budget import budget_for, tile_of
from sluice.scheduler.request import Request
from sluice.scheduler.state import SchedulerState
from sluice.testing.laws.pages import LawBroken
from sluice.testing.laws.plans import cost_of_slice, is_prefill, offloaded, resident
from sluice.types import BatchPlan, SchedulerLimits


def no_budget_is_unused(state: SchedulerState, limits: SchedulerLimits, plan: BatchPlan) -> None:
    """17. No half-computed prompt could have had another page, or tile, or the rest of its tokens, in this step.
    Where prefill is measured by its time, as only the scheduler can, none waits beside a step without prefill. Where a
    step takes one block of a prompt, that is meant."""
    if not limits.chunked_prefill_size or limits.prefills_by_block:
        return
    is_timed = state.pacer is not None or state.sizer is not None
    if is_timed and (plan.slices or len(plan.chunks) > plan.num_decodes):
        return
    page_size = state.kv.page_size
    tile = tile_of(limits.chunked_prefill_size, page_size) if limits.dynamic_chunking else page_size
    for request in (*state.partial.values(), *state.forced.values()):
        lease, wanted = request.lease, min(request.extend_len, tile)
        assert isinstance(lease, ResidentLease), f"request {request.id} is computed with {lease}"
        left = tokens_left(state, limits, plan, request)
        if not (left < wanted or lease.missing(request.scheduled + wanted) > state.kv.available):
            raise LawBroken(
                f"law 17: plan {plan.step} leaves {left} tokens unused, request {request.id} lacks {request.extend_len}"
            )


def tokens_left(state: SchedulerState, limits: SchedulerLimits, plan: BatchPlan, request: Request) -> int:
    """Return the tokens that the budgets of a step leave to a half-computed prompt, besides those it has in it."""
    chunks = {each.request_id: each for each in resident(plan) if is_prefill(state, each.start, each.request_id)}
    own = chunks[request.id].length if request.id in chunks else 0
    if limits.max_prefill_requests and not own and len(chunks) >= limits.max_prefill_requests:
        return 0
    of_slices = math.ceil(sum(cost_of_slice(state, each) for each in offloaded(plan)))
    used = sum(chunk.length for chunk in resident(plan)) + of_slices
    smoothing = limits.dynamic_chunking_smoothing
    budget = budget_for(limits.chunked_prefill_size, state.kv.page_size, limits.dynamic_chunking, smoothing)
    if of_slices:
        budget.take(0, of_slices)
    for chunk in chunks.values():
        budget.take(chunk.start, chunk.length)
    left = min(budget.left(request.scheduled), limits.max_batch_tokens - used)
    if limits.long_prefill_token_threshold:
        left = min(left, limits.long_prefill_token_threshold - own)
    if limits.max_prefill_tokens:
        left_to_all = limits.max_prefill_tokens - used + sum(chunk.num_drafts for chunk in resident(plan))
        if chunks and not own and request.extend_len >= left_to_all + of_slices:
            return 0  # it is not cut behind others
        left = min(left, left_to_all if chunks else max(state.kv.page_size, left_to_all))
    return left

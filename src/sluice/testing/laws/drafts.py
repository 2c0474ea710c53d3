"""Law 19: drafts are of rows whose tokens are all known, and never reach beyond what their request may have. Masked
positions fill the last block of such a row."""

from __future__ import annotations

from sluice.scheduler.state import SchedulerState
from sluice.testing.laws.pages import LawBroken
from sluice.types import BatchPlan, SchedulerLimits


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

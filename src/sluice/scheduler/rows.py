"""The row of a chunk, folded into its request: tokens, log-probabilities, an embedding, or an end."""

from __future__ import annotations

from sluice.kv.manager import ResidentLease
from sluice.scheduler.drafting.drafter import Drafter
from sluice.scheduler.request import Request, Status
from sluice.scheduler.state import SchedulerState
from sluice.types import Chunk, FinishReason, Output


def advance(state: SchedulerState, request: Request, chunk: Chunk, row: Output, *, is_complete: bool) -> list[Output]:
    """Fold a row that came back well into its request: count it, append its tokens, publish full pages, and end the
    request if it ends.

    Args:
        row: all that the row of the chunk gave.
        is_complete: the request's grammar allows nothing after the tokens.
    """
    tokens, reason = append(request, row.token_ids, is_complete=is_complete)
    if len(tokens) < len(row.token_ids):  # of drafts behind a stop token none counts
        accepted = min(row.num_accepted, len(tokens))
        row = row._replace(token_ids=tokens, logprobs=row.logprobs[: len(tokens)], num_accepted=accepted)
    end = computed_by(state, request, chunk, row)
    request.computed = end
    if end == request.prefill_end:
        state.computing.pop(request.id, None)  # a request that was preempted in flight has left it
    of_targets = row.prompt_logprobs
    if of_targets:
        # The first ones were sent before a preemption.
        of_targets = of_targets[request.prompt_logprobs_sent - chunk.start :]
        request.prompt_logprobs_sent += len(of_targets)
        row = row._replace(prompt_logprobs=of_targets)
    page_size = state.kv.page_size
    if end // page_size > chunk.start // page_size:
        assert request.lease is not None, f"request {request.id} was computed without pages"
        request.lease.publish(request.tokens, end)
    if chunk.checkpoints and state.states is not None:
        state.states.computed(request, chunk)
    if state.kv.windows is not None and isinstance(request.lease, ResidentLease):
        request.lease.leave(request.tokens, end)
    reason = FinishReason.STOP if chunk.embeds else reason
    outputs: list[Output] = []
    if tokens or of_targets or chunk.embeds:
        if chunk.num_drafts and request.block_size:
            row, request.num_passes = row._replace(num_passes=request.num_passes), 0
        outputs.append(row if reason is None else row._replace(finish_reason=reason))
    if reason is not None:
        state.end(request, reason)
    elif is_complete:
        outputs.append(end_request(state, request, FinishReason.STOP))
    elif len(tokens) > 1 and is_forced(request, row):
        state.force(request)
    return outputs


def computed_by(state: SchedulerState, request: Request, chunk: Chunk, row: Output) -> int:
    """Return how many tokens are computed after a chunk: all of its own but for drafts that were not accepted.

    If it was to sample and gave no token, its last one is to be computed once more, as a decode, since only what
    computes a token has its logits.
    """
    if chunk.num_drafts and request.block_size:
        return denoised(request, chunk)
    if chunk.num_drafts:
        assert state.drafter is not None, f"{chunk} has drafts that were not guessed"
        return verified(state.drafter, request, chunk, row)
    if row.token_ids or not chunk.samples:
        return chunk.end
    again = chunk.end - 1
    request.prefill_end = min(request.prefill_end, again)
    if request.id in state.decoding or request.id in state.offloaded:
        request.scheduled = again
    return again


def is_forced(request: Request, row: Output) -> bool:
    """Return whether a grammar forced some of the tokens of a row, which are prefill then."""
    if request.block_size:
        return False
    is_streaming = request.status in (Status.DECODING, Status.OFFLOADED)
    return is_streaming and len(row.token_ids) > 1 + row.num_accepted


def denoised(request: Request, chunk: Chunk) -> int:
    """Return how many tokens are computed after a chunk of whole blocks, the last of them open. What it computed of the
    open block is computed again: in the next pass, or, if the block is whole now, for good in the first pass over the
    next one."""
    end = chunk.end - request.block_size
    request.drafts = 0
    request.num_passes += 1
    request.scheduled = end
    request.prefill_end = min(request.prefill_end, end)
    return end


def verified(drafter: Drafter, request: Request, chunk: Chunk, row: Output) -> int:
    """Return how many tokens are computed after a chunk with drafts, and give the pages back that only drafts needed
    which were not accepted. Its request, of which nothing else is planned, continues from there."""
    assert request.lease is not None, f"request {request.id} was computed without pages"
    end = chunk.known_end + row.num_accepted
    if row.token_ids:
        request.num_drafted += chunk.num_drafts
        drafter.verified(request, chunk.num_drafts, row.num_accepted)
    else:
        end = chunk.known_end - 1
    request.drafts = 0
    request.scheduled = end
    request.lease.shrink(end + 1)
    return end


def append(
    request: Request, tokens: tuple[int, ...], *, is_complete: bool
) -> tuple[tuple[int, ...], FinishReason | None]:
    """Append the tokens of a row to its request, up to one that ends it. Return them, and why it ends."""
    start = request.num_outputs
    for count, token in enumerate(tokens, start=1):
        request.tokens.append(token)
        if token in request.stop_ids:
            return tokens[:count], FinishReason.STOP
        if start + count >= request.max_tokens:
            # The answer may have become complete with its last token.
            is_whole = is_complete and count == len(tokens)
            return tokens[:count], None if is_whole else FinishReason.LENGTH
    return tokens, None


def end_request(state: SchedulerState, request: Request, reason: FinishReason, error: str | None = None) -> Output:
    """End a request and return its last output, which has no tokens."""
    cached = max(0, request.num_cached_tokens)
    on_host, on_disk = (request.num_host_tokens, request.num_disk_tokens) if cached else (0, 0)
    output = Output(
        request.id,
        request.num_outputs,
        (),
        cached,
        reason,
        error,
        num_host_tokens=on_host,
        num_disk_tokens=on_disk,
    )
    state.end(request, reason)
    return output

"""What a row brought, folded into its request: tokens, log-probabilities, an embedding, or an end."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from sluice.scheduler.drafting.drafter import Drafter
from sluice.scheduler.request import Request, Status
from sluice.scheduler.state import SchedulerState
from sluice.types import Chunk, FinishReason, Output, TokenLogprobs


class Brought(NamedTuple):
    """What the row of one chunk brought."""

    tokens: tuple[int, ...] = ()
    logprobs: tuple[TokenLogprobs, ...] = ()
    """Of the tokens, if the request asks for them."""
    prompt_logprobs: tuple[TokenLogprobs, ...] = ()
    """Of the chunk's targets."""
    embedding: bytes = b""
    is_complete: bool = False
    """The request's grammar allows nothing after the tokens."""
    accepted: int = 0
    """Drafts of the chunk that are the first of the tokens."""


def advance(state: SchedulerState, request: Request, chunk: Chunk, brought: Brought) -> list[Output]:
    """Fold a row that came back well into its request: count it, append what it brought, publish full pages, and end
    the request if it ends."""
    start = request.num_outputs
    tokens, reason = append(request, brought)
    if brought.accepted > len(tokens):  # of drafts behind a stop token none counts
        brought = brought._replace(accepted=len(tokens))
    end = computed_by(state, request, chunk, brought)
    request.computed = end
    if end == request.prefill_end:
        state.computing.pop(request.id, None)  # a request that was preempted in flight has left it
    of_targets = brought.prompt_logprobs
    if of_targets:
        # The first ones were sent before a preemption.
        of_targets = of_targets[request.prompt_logprobs_sent - chunk.start :]
        request.prompt_logprobs_sent += len(of_targets)
    page_size = state.kv.page_size
    if end // page_size > chunk.start // page_size:
        assert request.lease is not None, f"request {request.id} was computed without pages"
        request.lease.publish(request.tokens, end)
    reason = FinishReason.STOP if chunk.embeds else reason
    outputs: list[Output] = []
    if tokens or of_targets or chunk.embeds:
        output = Output(
            request.id,
            start,
            tokens,
            request.num_cached_tokens,
            reason,
            None,
            brought.logprobs[: len(tokens)],
            of_targets,
            request.num_host_tokens,
            request.num_disk_tokens,
            brought.embedding,
        )
        outputs.append(with_drafts(output, request, chunk, brought) if chunk.num_drafts else output)
    if reason is not None:
        state.end(request, reason)
    elif brought.is_complete:
        outputs.append(end_request(state, request, FinishReason.STOP))
    elif len(tokens) > 1 and is_forced(request, tokens, brought):
        state.force(request)
    return outputs


def with_drafts(output: Output, request: Request, chunk: Chunk, brought: Brought) -> Output:
    """Return the output of a row with drafts, or with masked positions, with what it says of them."""
    if request.block_size:
        passes, request.num_passes = request.num_passes, 0
        return output._replace(num_passes=passes)
    return output._replace(num_drafted=chunk.num_drafts, num_accepted=brought.accepted)


def computed_by(state: SchedulerState, request: Request, chunk: Chunk, brought: Brought) -> int:
    """Return how many tokens are computed after a chunk: all of its own but for drafts that were not accepted.

    If it was to sample and brought no token, its last one is to be computed once more, as a decode, since only what
    computes a token has its logits.
    """
    if chunk.num_drafts and request.block_size:
        return denoised(request, chunk)
    if chunk.num_drafts:
        assert state.drafter is not None, f"{chunk} has drafts that were not guessed"
        return verified(state.drafter, request, chunk, brought)
    if brought.tokens or not chunk.samples:
        return chunk.end
    again = chunk.end - 1
    request.prefill_end = min(request.prefill_end, again)
    if request.id in state.decoding or request.id in state.offloaded:
        request.scheduled = again
    return again


def is_forced(request: Request, tokens: Sequence[int], brought: Brought) -> bool:
    """Return whether a grammar forced some of the tokens that a row brought, which are prefill then."""
    if request.block_size:
        return False
    is_streaming = request.status in (Status.DECODING, Status.OFFLOADED)
    return is_streaming and len(tokens) > 1 + brought.accepted


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


def verified(drafter: Drafter, request: Request, chunk: Chunk, brought: Brought) -> int:
    """Return how many tokens are computed after a chunk with drafts, and give the pages back that only drafts needed
    which were not accepted. Its request, of which nothing else is planned, goes on from there."""
    assert request.lease is not None, f"request {request.id} was computed without pages"
    end = min(chunk.known_end + brought.accepted, len(request.tokens) - 1)  # a stop token may be among the drafts
    if brought.tokens:
        request.num_drafted += chunk.num_drafts
        drafter.verified(request, chunk.num_drafts, brought.accepted)
    else:
        end = chunk.known_end - 1
    request.drafts = 0
    request.scheduled = end
    request.lease.shrink(end + 1)
    return end


def append(request: Request, brought: Brought) -> tuple[tuple[int, ...], FinishReason | None]:
    """Append the tokens of a row to its request, up to one that ends it. Return them, and why it ends."""
    start = request.num_outputs
    for count, token in enumerate(brought.tokens, start=1):
        request.tokens.append(token)
        if token in request.stop_ids:
            return brought.tokens[:count], FinishReason.STOP
        if start + count >= request.max_tokens:
            # The answer may have become complete with its last token.
            is_whole = brought.is_complete and count == len(brought.tokens)
            return brought.tokens[:count], None if is_whole else FinishReason.LENGTH
    return brought.tokens, None


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

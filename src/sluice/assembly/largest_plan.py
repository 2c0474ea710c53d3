"""The plan of the largest step, which is run on a GPU to see what it takes beside weights and KV."""

from __future__ import annotations

from dataclasses import dataclass

from sluice.types import MAX_LOGPROBS, BatchPlan, Chunk, NewSlot, SamplingParams, Submit

EVERYTHING = SamplingParams(
    seed=0, top_p=0.9, repetition_penalty=1.1, logprobs=MAX_LOGPROBS, prompt_logprobs=MAX_LOGPROBS
)
"""Parameters that take most memory: ranks in the whole vocabulary, token counts, log-probabilities of all tokens."""


@dataclass(frozen=True, slots=True)
class StepLimits:
    """The limits of a step."""

    rows: int
    """Most requests."""
    tokens: int
    """Most tokens, decodes and prompts together; at least `rows`."""
    context: int
    """Most tokens of a request."""


def largest_plan(
    limits: StepLimits,
    page_size: int,
    sampling: SamplingParams = EVERYTHING,
    block: int = 1,
    *,
    has_windows: bool = False,
) -> BatchPlan:
    """Return a plan of as many decodes as there may be, all of full length, and prompts for the rest of the tokens.

    All pages are page 0, so that a pool of one page suffices: the results mean nothing. It must be the first plan of
    an empty device.

    Args:
        block: where recurrent states may begin, the multiples of which chunks begin at. They do so from record 0.
    """
    prompts = _num_prompts(limits)
    decodes = limits.rows - prompts
    lengths = [1] * decodes + _shares(min(limits.tokens - decodes, prompts * limits.context), prompts)
    pages = (0,) * -(-limits.context // page_size)
    starts = [(limits.context - length) // block * block for length in lengths]
    chunks = tuple(
        Chunk(
            request_id=slot,
            slot=slot,
            start=start,
            length=length,
            token_ids=(0,) * length,
            new_pages=pages,
            samples=True,
            targets=() if sampling.prompt_logprobs is None else (0,) * (length - 1),
            new_window_pages=pages if has_windows else (),
            firm=0 if block == 1 else start + length - 1,
        )
        for slot, (start, length) in enumerate(zip(starts, lengths, strict=True))
    )
    new_slots = tuple(
        NewSlot(
            slot,
            Submit(slot, (), sampling),
            prompt_len=1,
            history=(0,),
            cached=0 if block == 1 else start,
            record=0 if block > 1 and start else None,
        )
        for slot, start in enumerate(starts)
    )
    return BatchPlan(0, new_slots, chunks, num_decodes=decodes)


def _num_prompts(limits: StepLimits) -> int:
    """Return the fewest rows that hold the tokens which the other rows, one token each, do not take."""
    if limits.tokens <= limits.rows:
        return 0
    if limits.context == 1:
        return limits.rows
    return min(limits.rows, -(-(limits.tokens - limits.rows) // (limits.context - 1)))


def _shares(total: int, parts: int) -> list[int]:
    """Split `total` into parts that differ by one at most."""
    return [total // parts + (part < total % parts) for part in range(parts)]

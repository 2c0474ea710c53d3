"""How many pages of layers with a window running requests can need at once."""

from __future__ import annotations

from sluice.types import SchedulerLimits


def window_reserve(limits: SchedulerLimits, length: int, page_size: int, depth: int, longest: int) -> int:
    """Return the pages with which no request ever waits for one.

    A request needs what a query sees before it, with a page that is cut at each end, and what its tokens in flight are
    written to. The tokens in flight are those of so many steps, and those of chunks that are divided among steps.

    Args:
        length: positions that a query sees at most, its own included.
        page_size: tokens of a page.
        depth: steps in flight.
        longest: tokens of the longest request.
    """
    of_request = -(-(length - 1) // page_size) + 2
    tokens = limits.max_batch_tokens
    if not limits.chunked_prefill_size:  # a prompt that may not be cut goes beside decodes alone, however long it is
        tokens = max(tokens, longest + limits.max_running_requests)
    pages = limits.max_running_requests * of_request + depth * -(-tokens // page_size)
    if limits.sliced_chunk_size:
        places = min(limits.max_running_requests, limits.max_partial_prefills * max(1, len(limits.classes)))
        pages += (depth + 1) * places * -(-limits.sliced_chunk_size // page_size)
    return pages

"""How far the prompts of a call are read, for the clients that ask for it."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence

import msgspec

from sluice.engine.messages import Stats
from sluice.engine.prompt_meter import PromptProgress
from sluice.process.client import EngineClient, EngineGone

WAIT_SECONDS = 0.5
"""Seconds to wait for an engine in a long step. After them its last answer counts."""


class Progress(msgspec.Struct, frozen=True):
    """How far the prompts of a call are read, with `stream_options.include_progress`."""

    prompt_tokens_read: int
    """Computed, or found in the cache."""
    prompt_tokens: int
    seconds_left: float | None
    """Expected seconds until all are read; null while that is not known, as before the first one was begun."""


def together(prompts: Iterable[tuple[int, int, bool]], known: Sequence[PromptProgress]) -> Progress:
    """Return the progress of several prompts.

    Args:
        prompts: the id of each one's request, its length, and whether a token has followed it.
        known: what the engine says.
    """
    by_id = {each.request_id: each for each in known}
    read = total = 0
    left: list[float | None] = []
    for request_id, length, is_over in prompts:
        total += length
        if is_over:
            read += length
            continue
        found = by_id.get(request_id)
        read += 0 if found is None else found.read
        left.append(None if found is None else found.seconds_left)
    if any(each is None for each in left):
        return Progress(read, total, None)
    return Progress(read, total, round(max((each for each in left if each is not None), default=0.0), 3))


class PromptQueries:
    """Asks the engine how far prompts are read. Streams that ask while it has not answered share its answer."""

    def __init__(self) -> None:
        self._query: asyncio.Task[Stats | None] | None = None

    async def prompts(self, client: EngineClient) -> tuple[PromptProgress, ...]:
        """Return what the engine says of the prompts that it reads; nothing without an engine."""
        if self._query is None or self._query.done():
            self._query = asyncio.create_task(_stats_or_none(client), name="prompt-progress")
        query = self._query
        await asyncio.wait({query}, timeout=WAIT_SECONDS)  # a caller that leaves does not end it for the others
        stats = query.result() if query.done() else client.latest
        return () if stats is None else stats.prompts


async def _stats_or_none(client: EngineClient) -> Stats | None:
    try:
        return await client.stats()
    except EngineGone:
        return None

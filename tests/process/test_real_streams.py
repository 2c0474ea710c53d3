"""Streams of a real model across the deaths of its engine processes: a smaller `tests/stress/recovery.py`."""

from __future__ import annotations

import asyncio

from any_checkpoint import VOCAB_SIZE, any_checkpoint
from stress.recovery import Killer, hosting, play, problems_of, requests_of

STREAMS, TOKENS, KILLS = 8, 32, 1
EARLY = STREAMS * TOKENS // 4
"""Engines are killed before so many tokens have arrived: on a busy machine they are far ahead of the client."""
OPTIONS = {"model": str(any_checkpoint()), "dtype": "float64", "max_total_tokens": 1 << 13, "threads": 1}


def test_killed_streams_equal_those_of_an_undisturbed_run() -> None:
    """Greedy and seeded requests of several lengths, killed in the middle of prompts and of answers."""

    async def test() -> None:
        requests = requests_of(STREAMS, TOKENS, VOCAB_SIZE)
        async with hosting(OPTIONS) as host:
            undisturbed = await play(host, requests)
            killer = Killer(host, KILLS, EARLY, seed=3)
            disturbed = await play(host, requests, killer.on_tokens)
            stats = host.state.stats
        assert problems_of(undisturbed + disturbed) == []
        assert [stream.tokens for stream in disturbed] == [stream.tokens for stream in undisturbed]
        assert len({tuple(stream.tokens) for stream in undisturbed}) == STREAMS
        assert (len(killer.moments), stats.restarts, stats.ended_requests) == (KILLS, KILLS, 0)
        assert stats.replayed_tokens > 0

    asyncio.run(asyncio.wait_for(test(), 300))

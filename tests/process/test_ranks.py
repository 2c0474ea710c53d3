"""Several ranks, as processes over gloo: the answers of one process, and what happens if a rank dies or is refused."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Sequence

import pytest

import processes
from serving import run
from sluice import LLM, AsyncLLM, SamplingParams

PROMPTS = [
    "The key of the blue box is 4711.",
    "Once upon a time",
    "A sluice is a gate that",
    "In the attic of the house",
]
GREEDY = SamplingParams(temperature=0.0, max_tokens=24, ignore_eos=True)
SEEDED = SamplingParams(temperature=0.9, top_p=0.9, repetition_penalty=1.1, seed=7, max_tokens=24, ignore_eos=True)
ASKED = [GREEDY, SEEDED, GREEDY, SEEDED]
EXACT = {"dtype": "float64", "max_total_tokens": 2048, "chunked_prefill_size": 32, "page_size": 8, "threads": 1}
"""Sums of parts differ in rounding, which in float64 changes no token."""


@pytest.fixture(scope="module")
def expected() -> list[str]:
    """What one process answers."""
    with LLM(**EXACT) as llm:
        return [result.text for result in llm.generate(PROMPTS, ASKED)]


async def answers(llm: AsyncLLM, prompts: Sequence[str] = PROMPTS) -> list[str]:
    """Return the answers to all prompts, asked at once."""

    async def answer(prompt: str, params: SamplingParams) -> str:
        return "".join([piece.text async for piece in llm.generate(prompt, params)])

    return list(await asyncio.gather(*map(answer, prompts, ASKED)))


@pytest.mark.parametrize("sizes", [{"pp_size": 2, "enable_overlap": True}, {"tp_size": 2, "pp_size": 2}], ids=str)
def test_ranks_answer_as_one_process(sizes: dict[str, int], expected: list[str]) -> None:
    async def test() -> None:
        async with AsyncLLM(**EXACT, **sizes) as llm:
            assert llm.pid is not None
            ranks = processes.children(llm.pid)
            assert len(ranks) == sizes.get("tp_size", 1) * sizes.get("pp_size", 1) - 1
            assert await answers(llm) == expected
        assert all(processes.ends(rank, 10) for rank in ranks), "ranks end with their engine"

    run(test)


def test_streams_go_on_when_a_rank_is_killed(expected: list[str]) -> None:
    async def test() -> None:
        async with AsyncLLM(**EXACT, tp_size=2) as llm:
            assert llm.pid is not None
            first, (rank,) = llm.pid, processes.children(llm.pid)
            asked = asyncio.create_task(answers(llm))
            stream = llm.generate(PROMPTS[0], GREEDY)
            pieces = [await anext(stream)]
            os.kill(rank, signal.SIGKILL)
            pieces += [piece async for piece in stream]
            assert "".join(piece.text for piece in pieces) == expected[0]
            assert await asked == expected
            assert llm.num_restarts == 1
            assert llm.pid != first

    run(test)

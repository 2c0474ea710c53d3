"""AsyncLLM: the engine in a process of its own, as users of asyncio call it."""

from __future__ import annotations

import asyncio
import os
import signal
from pathlib import Path

import numpy as np
import pytest

from any_checkpoint import any_checkpoint
from random_checkpoint import random_checkpoint
from sluice import LLM, AsyncLLM, SamplingParams
from sluice.types import FinishReason
from sluice.types.request_limits import LimitError

OPTIONS = {"max_total_tokens": 512, "page_size": 16, "dtype": "float32"}
GREEDY = SamplingParams(max_tokens=12, temperature=0, ignore_eos=True)
KILLED = SamplingParams(max_tokens=40, temperature=0, ignore_eos=True)
LONG = SamplingParams(max_tokens=400, temperature=0, ignore_eos=True)
TEXTS = ["The river rises.", "Good evening", "A sluice"]


async def text_of(llm: AsyncLLM, prompt: str, sampling: SamplingParams = GREEDY) -> str:
    return "".join([piece.text async for piece in llm.generate(prompt, sampling)])


def test_it_gives_what_llm_gives(tmp_path: Path) -> None:
    """Texts of tasks that run at once, embeddings, and the errors of bad arguments; and after its engine was killed a
    stream goes on where it was, and an embedding that waited is answered."""
    folder = random_checkpoint(tmp_path)
    with LLM(folder, **OPTIONS) as llm:
        expected = [result.text for result in llm.generate(TEXTS, GREEDY)]
        (whole,) = llm.generate([TEXTS[0]], KILLED)
        vectors = [each.vector for each in llm.embed(TEXTS)]

    async def test() -> None:
        async with AsyncLLM(folder, **OPTIONS) as llm:
            assert await asyncio.gather(*(text_of(llm, text) for text in TEXTS)) == expected
            found = await llm.embed(TEXTS)
            np.testing.assert_allclose([each.vector for each in found], vectors, atol=1e-5)
            with pytest.raises(LimitError, match="dimensions must be from 1 to"):
                await llm.embed(TEXTS, dimensions=10**6)
            with pytest.raises(LimitError, match="the prompt is empty"):
                await text_of(llm, "")
            with pytest.raises(ValueError, match="n must be 1, got 2"):
                await text_of(llm, "a", SamplingParams(n=2))
            await ends_when_aborted(llm)
            stream = llm.generate(TEXTS[0], KILLED)
            pieces = [await anext(stream)]
            os.kill(llm.pid, signal.SIGKILL)
            (after,) = await llm.embed(TEXTS[1])
            np.testing.assert_allclose(after.vector, vectors[1], atol=1e-5)
            pieces += [piece async for piece in stream]
            assert "".join(piece.text for piece in pieces) == whole.text
            assert llm.num_restarts == 1
        with pytest.raises(RuntimeError, match="closed"):
            await text_of(llm, "a")

    asyncio.run(test())


async def ends_when_aborted(llm: AsyncLLM) -> None:
    """An aborted stream must end, not wait for ever; its name may be used again."""
    for _ in range(2):
        stream = llm.generate(TEXTS[0], LONG, request_id="long")
        await anext(stream)
        llm.abort("long")
        *_, last = [piece async for piece in stream]
        assert last.finish_reason is FinishReason.ABORT
    llm.abort("unknown")


def test_both_libraries_chat() -> None:
    """A conversation is rendered by the model's template, as the server renders it, in both libraries."""
    talk = [{"role": "user", "content": "The code of the gate is 4711. What is the code?"}]
    with LLM(any_checkpoint(), max_total_tokens=1024) as llm:
        (answer,) = llm.chat(talk, GREEDY)
        assert [result.text for result in llm.chat([talk, talk], GREEDY)] == [answer.text] * 2
        with pytest.raises(ValueError, match="message 0 must have a role and content"):
            llm.chat([{"content": "a"}])
        with pytest.raises(ValueError, match="non-empty list of messages"):
            llm.chat([])

    async def test() -> str:
        async with AsyncLLM(any_checkpoint(), max_total_tokens=1024) as llm:
            return "".join([piece.text async for piece in llm.chat(talk, GREEDY)])

    assert asyncio.run(test()) == answer.text

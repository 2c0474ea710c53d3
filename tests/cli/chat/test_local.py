"""Conversations with the engine in this process."""

from __future__ import annotations

import io
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from any_checkpoint import any_checkpoint
from random_checkpoint import random_checkpoint
from sluice import LLM, cli
from sluice.cli.chat.answers import STOPPED, AnswerError, AnswerPart
from sluice.cli.chat.local import LocalSource
from sluice.cli.chat.stopping import Stopper

LONG = "The heavy clock is near the boathouse. " * 30


@pytest.fixture(scope="module")
def llm() -> Iterator[LLM]:
    with LLM(any_checkpoint(), max_total_tokens=2048, chunked_prefill_size=64) as llm:
        yield llm


def asked(text: str) -> list[dict[str, str]]:
    return [{"role": "user", "content": text}]


def test_a_model_that_cannot_talk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Said at the start, not after the first message."""
    folder = random_checkpoint(tmp_path)
    (folder / "tokenizer_config.json").unlink()  # which holds the template
    monkeypatch.setattr(sys, "stdin", io.StringIO("Hello"))
    assert cli.main(["chat", str(folder)]) == 1
    assert "chat template" in capsys.readouterr().err


def test_an_answer_is_as_long_as_the_context_allows() -> None:
    """Answers ended after the library's default of 16 tokens, though the help promises the room of the context."""
    with LLM(any_checkpoint(), max_total_tokens=256, context_length=128) as short:
        source = LocalSource(short, {"temperature": 0.0, "ignore_eos": True})
        *_, last = source.answer(asked("Hello"), Stopper())
        assert last.usage is not None
        assert last.usage.completion_tokens == 128 - last.usage.prompt_tokens


def test_the_prompt_and_the_cache_are_counted(llm: LLM) -> None:
    source = LocalSource(llm, {"max_tokens": 5, "temperature": 0.0, "ignore_eos": True})
    for is_again in (False, True):
        *_, last = source.answer(asked(LONG), Stopper())
        assert last.usage is not None
        assert last.usage.prompt_tokens > 200
        assert last.usage.completion_tokens == 5
        assert (last.usage.cached_tokens > 0.8 * last.usage.prompt_tokens) == is_again
        assert last.finish_reason == "length"


def test_a_long_prompt_tells_how_far_it_is_read(llm: LLM) -> None:
    """A bar that stands still, or jumps to the end."""
    llm_calls: list[tuple[int, int]] = []
    text = "Every step is a chunk. " * 60
    pieces = llm.stream_chat(asked(text), on_prefill=lambda done, total: llm_calls.append((done, total)))
    next(iter(pieces))
    pieces.close()
    done = [done for done, _ in llm_calls]
    assert done[0] < done[-1] == llm_calls[-1][1]
    assert done == sorted(set(done))
    assert len(done) > 4


@pytest.mark.parametrize("after", [0, 3])
def test_an_answer_that_is_stopped_leaves_the_model_usable(llm: LLM, after: int) -> None:
    """The library closes a model whose step is interrupted; a chat must go on."""
    source, stopper = LocalSource(llm, {"max_tokens": 50, "ignore_eos": True}), Stopper()
    if not after:
        stopper.ask()  # while the prompt is read
    parts: list[AnswerPart] = []
    for part in source.answer(asked(f"{LONG} {after}"), stopper):
        parts.append(part)
        if len(parts) == after:
            stopper.ask()
    assert parts[-1].finish_reason == STOPPED
    assert len(parts) == after + 1
    *_, last = source.answer(asked("Hello"), Stopper())
    assert last.usage is not None


def test_a_conversation_that_is_too_long(llm: LLM) -> None:
    source = LocalSource(llm, {})
    with pytest.raises(AnswerError, match="tokens"):
        list(source.answer(asked(LONG * 20), Stopper()))

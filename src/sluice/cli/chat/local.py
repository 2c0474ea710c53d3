"""Answers of the engine in this process."""

from __future__ import annotations

from collections.abc import Generator, Mapping
from contextlib import closing
from typing import Any

from sluice.cli.chat.answers import STOPPED, AnswerError, AnswerPart, AnswerUsage, Messages
from sluice.cli.chat.progress import PromptBar
from sluice.cli.chat.stopping import Stopper
from sluice.llm.llm import LLM
from sluice.llm.outputs import GenerationError
from sluice.types import SamplingParams


class _Stopped(Exception):
    """The answer was stopped before its first token."""


class LocalSource:
    """Answers with a loaded model.

    Args:
        llm: closed with the source.
        asked: sampling parameters that the user set.
        adapter: name of the adapter that answers; empty: none.

    Raises:
        ValueError: the model has no chat template, or there is too little room for its answers.
    """

    def __init__(self, llm: LLM, asked: Mapping[str, Any], adapter: str = "") -> None:
        self._llm = llm
        self._adapter = adapter
        # The library's default is 16 tokens; a conversation's answers are as long as the context allows.
        params = SamplingParams(**{"max_tokens": None, **asked})
        self._sampling = llm.info.sampling_defaults.fill(params, asked)
        # Tells at once whether conversations are possible, and starts the process that renders them.
        llm.stream_chat([{"role": "user", "content": "Hello"}], self._sampling)

    @property
    def model(self) -> str:
        return self._adapter or self._llm.info.model

    @property
    def where(self) -> str:
        return f"in this process, on {self._llm.info.device}"

    def answer(self, messages: Messages, stopper: Stopper) -> Generator[AnswerPart, None, None]:
        cached = total = written = 0
        reason: str | None = None
        with PromptBar() as bar:

            def read(done: int, of: int) -> None:
                nonlocal cached, total
                cached, total = (cached, of) if total else (done, of)
                bar.show(done, of)
                if stopper.is_asked:
                    raise _Stopped

            try:
                answer = self._llm.stream_chat(messages, self._sampling, adapter=self._adapter, on_prefill=read)
                with closing(answer) as pieces:
                    for piece in pieces:
                        bar.close()
                        written += piece.token_id is not None
                        reason = None if piece.finish_reason is None else piece.finish_reason.value
                        yield AnswerPart(piece.text)
                        if stopper.is_asked:
                            raise _Stopped
            except _Stopped:
                reason = reason or STOPPED
            except (ValueError, GenerationError) as error:
                raise AnswerError(str(error)) from error
        yield AnswerPart(usage=AnswerUsage(total, cached, written), finish_reason=reason)

    def close(self) -> None:
        self._llm.close()

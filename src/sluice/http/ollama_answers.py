"""Answers in Ollama's form: one object, or a stream of objects, one a line, whose last one has the counts and times."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from typing import Any

from sluice.http.answers import text_of
from sluice.http.framing import LINES
from sluice.http.generate_call import GenerateCall
from sluice.http.generation import Generation, Usage
from sluice.http.logprobs import chat_logprobs
from sluice.text.text_stream import Piece

SECOND = 1_000_000_000
"""Nanoseconds."""


class _OllamaAnswer(ABC):
    """What the answers of both routes have in common."""

    framing = LINES

    def __init__(self, call: GenerateCall[Any], generation: Generation) -> None:
        self._model = call.fields.model
        self._generation = generation
        self._tokenizer = generation.service.tokenizer

    @abstractmethod
    def content(self, text: str) -> dict[str, Any]:
        """Return a part of the text as the answer's own field."""

    def opening(self, index: int) -> dict[str, Any] | None:
        return None

    def chunks(self, arrived: Sequence[tuple[int, Piece]]) -> Iterator[dict[str, Any]]:
        for _, piece in arrived:
            if piece.text or piece.logprobs is not None:
                yield self._head() | self.content(piece.text) | {"done": False} | self._logprobs([piece])

    def closing(self, usage: Usage) -> dict[str, Any] | None:
        return self._head() | self.content("") | self._end(usage)

    def whole(self, choices: Sequence[Sequence[Piece]], usage: Usage) -> dict[str, Any]:
        pieces = choices[0] if choices else ()
        return self._head() | self.content(text_of(pieces)) | self._end(usage) | self._logprobs(pieces)

    def _head(self) -> dict[str, Any]:
        return {"model": self._model, "created_at": self._time()}

    def _time(self) -> str:
        """Return the present time as RFC 3339 has it."""
        generation = self._generation
        seconds = generation.created + generation.service.client.now() - generation.came_at
        return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")

    def _logprobs(self, pieces: Sequence[Piece]) -> dict[str, Any]:
        found = chat_logprobs(self._tokenizer, pieces)
        return {} if found is None else {"logprobs": found["content"]}

    def _end(self, usage: Usage) -> dict[str, Any]:
        """Return why and when the answer ended, and what it took, in nanoseconds.

        `load_duration` lasts until the engine was given the request, `prompt_eval_duration` from then to the first
        token, waiting included, and `eval_duration` from there to the end.
        """
        generation = self._generation
        ended = generation.service.client.now()
        submitted = generation.came_at if generation.submitted_at is None else generation.submitted_at
        times = {"total_duration": _nanoseconds(ended - generation.came_at)}
        times["load_duration"] = _nanoseconds(submitted - generation.came_at)
        if not generation.choices:
            return {"done": True, "done_reason": "load"} | times
        (choice,) = generation.choices
        reason = choice.text.finish_reason
        assert reason is not None, "the answer has not ended"
        began = ended if generation.began_at is None else generation.began_at
        return {
            "done": True,
            "done_reason": reason.value,
            **times,
            "prompt_eval_count": usage.prompt_tokens,
            "prompt_eval_duration": _nanoseconds(began - submitted),
            "eval_count": usage.completion_tokens,
            "eval_duration": _nanoseconds(ended - began),
        }


class OllamaChatAnswer(_OllamaAnswer):
    """The answer to `POST /api/chat`."""

    def content(self, text: str) -> dict[str, Any]:
        return {"message": {"role": "assistant", "content": text}}


class OllamaGenerateAnswer(_OllamaAnswer):
    """The answer to `POST /api/generate`."""

    def content(self, text: str) -> dict[str, Any]:
        return {"response": text}


def _nanoseconds(seconds: float) -> int:
    return round(seconds * SECOND)

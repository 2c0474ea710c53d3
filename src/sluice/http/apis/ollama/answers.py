"""Answers in Ollama's form: one object, or a stream of objects, one a line, whose last one has the counts and times."""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

from sluice.http.base.framing import LINES
from sluice.http.base.progress import Progress
from sluice.http.call.generate_call import GenerateCall
from sluice.http.call.generation import Generation, Usage
from sluice.http.call.logprobs import chat_logprobs
from sluice.http.call.replies import ReplyReader
from sluice.text.parsers.events import (
    ArgumentsDelta,
    Call,
    CallBegun,
    CallEnded,
    Event,
    ReasoningDelta,
    Reply,
    TextDelta,
    whole_of,
)
from sluice.text.parsers.parsing import TextOnly
from sluice.text.text_stream import Piece

NOTHING = Reply()
SECOND = 1_000_000_000
"""Nanoseconds."""


class _OllamaAnswer(ABC):
    """What the answers of both routes have in common."""

    framing = LINES

    def __init__(self, call: GenerateCall[Any], generation: Generation) -> None:
        self._model = call.fields.model
        self._generation = generation
        self._tokenizer = generation.service.tokenizer
        self._reader = ReplyReader(generation.choices[0].parser if generation.choices else TextOnly())
        self._calls: list[Event] = []
        """Of the call whose arguments are not complete. They are an object here, and no text."""

    @abstractmethod
    def content(self, reply: Reply) -> dict[str, Any]:
        """Return a part of the answer in the route's own fields."""

    def opening(self, index: int) -> list[dict[str, Any]]:
        return []

    def chunks(self, arrived: Sequence[tuple[int, Piece]]) -> Iterator[dict[str, Any]]:
        for _, piece in arrived:
            reply = self._arrived(self._reader.push(piece))
            if reply != NOTHING or piece.logprobs is not None:
                yield self._head() | self.content(reply) | {"done": False} | self._logprobs([piece])

    def _arrived(self, events: Sequence[Event]) -> Reply:
        """Return what events bring: text and reasoning as they come, calls when they are complete."""
        self._calls += [event for event in events if isinstance(event, CallBegun | ArgumentsDelta | CallEnded)]
        text = whole_of(event for event in events if isinstance(event, TextDelta | ReasoningDelta))
        if not self._calls or not isinstance(self._calls[-1], CallEnded):
            return text
        calls, self._calls = whole_of(self._calls).calls, []
        return replace(text, calls=calls)

    def waiting(self, progress: Progress | None) -> Iterator[dict[str, Any]]:
        """Yield a part of the answer without a text: lines of JSON have no comments."""
        yield self._head() | self.content(NOTHING) | {"done": False}

    def closing(self, usage: Usage) -> list[dict[str, Any]]:
        return [self._head() | self.content(NOTHING) | self._end(usage)]

    def whole(self, choices: Sequence[Sequence[Piece]], usage: Usage) -> dict[str, Any]:
        pieces = choices[0] if choices else ()
        return self._head() | self.content(self._reader.read(pieces)) | self._end(usage) | self._logprobs(pieces)

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
        times = {"total_duration": nanoseconds(ended - generation.came_at)}
        times["load_duration"] = nanoseconds(submitted - generation.came_at)
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
            "prompt_eval_duration": nanoseconds(began - submitted),
            "eval_count": usage.completion_tokens,
            "eval_duration": nanoseconds(ended - began),
        }


class OllamaChatAnswer(_OllamaAnswer):
    """The answer to `POST /api/chat`."""

    def content(self, reply: Reply) -> dict[str, Any]:
        called = [(call, arguments_of(call)) for call in reply.calls]
        cut_off = "".join(f"{call.name}{call.arguments}" for call, arguments in called if arguments is None)
        message: dict[str, Any] = {"role": "assistant", "content": reply.text + cut_off} | _thinking(reply)
        calls = [
            {"id": call.id, "function": {"name": call.name, "arguments": arguments}}
            for call, arguments in called
            if arguments is not None
        ]
        return {"message": message | ({"tool_calls": calls} if calls else {})}


class OllamaGenerateAnswer(_OllamaAnswer):
    """The answer to `POST /api/generate`."""

    def content(self, reply: Reply) -> dict[str, Any]:
        return {"response": reply.text} | _thinking(reply)


def arguments_of(call: Call) -> dict[str, Any] | None:
    """Return the arguments of a call as an object; None if their text is none."""
    try:
        arguments = json.loads(call.arguments)
    except (ValueError, RecursionError):
        return None
    return arguments if isinstance(arguments, dict) else None


def _thinking(reply: Reply) -> dict[str, str]:
    return {"thinking": reply.reasoning} if reply.reasoning else {}


def nanoseconds(seconds: float) -> int:
    """Return a duration as Ollama's answers have it."""
    return round(seconds * SECOND)

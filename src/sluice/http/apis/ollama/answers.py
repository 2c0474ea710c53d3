"""Answers in Ollama's form: one object, or a stream of objects, one a line, whose last one has the counts and times."""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any, Literal

import msgspec
from msgspec import UNSET, UnsetType

from sluice.http.base.framing import LINES
from sluice.http.base.progress import Progress
from sluice.http.call.generate_call import GenerateCall
from sluice.http.call.generation import Generation, Usage
from sluice.http.call.logprobs import ChatToken, chat_logprobs
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


Count = int | UnsetType
Nanoseconds = int | UnsetType


class _OllamaPart(msgspec.Struct, kw_only=True):
    model: str
    created_at: str
    """Now, as RFC 3339 has it."""
    done: bool
    """What is optional below, besides `logprobs`, is in the last event of a stream, and in whole answers."""
    logprobs: list[ChatToken] | UnsetType = UNSET
    done_reason: Literal["stop", "length", "load"] | UnsetType = UNSET
    total_duration: Nanoseconds = UNSET
    load_duration: Nanoseconds = UNSET
    prompt_eval_count: Count = UNSET
    prompt_eval_duration: Nanoseconds = UNSET
    eval_count: Count = UNSET
    eval_duration: Nanoseconds = UNSET


class OllamaCalledFunction(msgspec.Struct):
    name: str
    arguments: dict[str, Any]


class OllamaCall(msgspec.Struct):
    id: str
    function: OllamaCalledFunction


class OllamaAssistantMessage(msgspec.Struct, kw_only=True):
    role: Literal["assistant"]
    content: str
    thinking: str | UnsetType = UNSET
    tool_calls: list[OllamaCall] | UnsetType = UNSET


class OllamaChat(_OllamaPart, kw_only=True):
    message: OllamaAssistantMessage


class OllamaGenerated(_OllamaPart, kw_only=True):
    response: str
    thinking: str | UnsetType = UNSET


class _OllamaAnswer(ABC):
    """What the answers of both routes have in common."""

    framing = LINES

    def __init__(self, call: GenerateCall[Any], generation: Generation) -> None:
        self._model = call.fields.model
        self._generation = generation
        self._tokenizer = generation.service.tokenizer
        self._reader = ReplyReader(generation.choices[0].parser if generation.choices else TextOnly())
        self._calls: list[Event] = []
        """Events of the call whose arguments are not complete. Ollama's clients take them as an object, not as text."""

    @abstractmethod
    def part(self, reply: Reply, others: dict[str, Any]) -> OllamaChat | OllamaGenerated:
        """Return a part of the answer in the route's own fields, with those that both routes have."""

    def opening(self, index: int) -> list[msgspec.Struct]:
        return []

    def chunks(self, arrived: Sequence[tuple[int, Piece]]) -> Iterator[msgspec.Struct]:
        for _, piece in arrived:
            reply = self._arrived(self._reader.push(piece))
            if reply != NOTHING or piece.logprobs is not None:
                yield self._part(reply, done=False, logprobs=self._logprobs([piece]))

    def _arrived(self, events: Sequence[Event]) -> Reply:
        """Return what events bring: text and reasoning as they come, calls when they are complete."""
        self._calls += [event for event in events if isinstance(event, CallBegun | ArgumentsDelta | CallEnded)]
        text = whole_of(event for event in events if isinstance(event, TextDelta | ReasoningDelta))
        if not self._calls or not isinstance(self._calls[-1], CallEnded):
            return text
        calls, self._calls = whole_of(self._calls).calls, []
        return replace(text, calls=calls)

    def waiting(self, progress: Progress | None) -> Iterator[msgspec.Struct]:
        """Yield a part of the answer without a text: lines of JSON have no comments."""
        yield self._part(NOTHING, done=False)

    def closing(self, usage: Usage) -> list[msgspec.Struct]:
        return [self._part(NOTHING, **self._end(usage))]

    def whole(self, choices: Sequence[Sequence[Piece]], usage: Usage) -> msgspec.Struct:
        pieces = choices[0] if choices else ()
        return self._part(self._reader.read(pieces), logprobs=self._logprobs(pieces), **self._end(usage))

    def _part(self, reply: Reply, **others: Any) -> msgspec.Struct:
        return self.part(reply, {"model": self._model, "created_at": self._time(), **others})

    def _time(self) -> str:
        """Return the present time as RFC 3339 has it."""
        generation = self._generation
        seconds = generation.created + generation.service.client.now() - generation.came_at
        return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")

    def _logprobs(self, pieces: Sequence[Piece]) -> list[ChatToken] | UnsetType:
        found = chat_logprobs(self._tokenizer, pieces)
        return UNSET if found is None else found.content

    def _end(self, usage: Usage) -> dict[str, Any]:
        """Return why and when the answer ended, and what it took, in nanoseconds.

        `load_duration` lasts until the engine was given the request, `prompt_eval_duration` from then to the first
        token, waiting included, and `eval_duration` from there to the end.
        """
        generation = self._generation
        ended = generation.service.client.now()
        submitted = generation.came_at if generation.submitted_at is None else generation.submitted_at
        end = {
            "done": True,
            "total_duration": nanoseconds(ended - generation.came_at),
            "load_duration": nanoseconds(submitted - generation.came_at),
        }
        if not generation.choices:
            return end | {"done_reason": "load"}
        (choice,) = generation.choices
        reason = choice.text.finish_reason
        assert reason is not None, "the answer has not ended"
        began = ended if generation.began_at is None else generation.began_at
        return end | {
            "done_reason": reason.value,
            "prompt_eval_count": usage.prompt_tokens,
            "prompt_eval_duration": nanoseconds(began - submitted),
            "eval_count": usage.completion_tokens,
            "eval_duration": nanoseconds(ended - began),
        }


class OllamaChatAnswer(_OllamaAnswer):
    """The answer to `POST /api/chat`."""

    def part(self, reply: Reply, others: dict[str, Any]) -> OllamaChat:
        called = [(call, arguments_of(call)) for call in reply.calls]
        cut_off = "".join(f"{call.name}{call.arguments}" for call, arguments in called if arguments is None)
        calls = [
            OllamaCall(call.id, OllamaCalledFunction(call.name, arguments))
            for call, arguments in called
            if arguments is not None
        ]
        message = OllamaAssistantMessage(
            role="assistant",
            content=reply.text + cut_off,
            thinking=reply.reasoning or UNSET,
            tool_calls=calls or UNSET,
        )
        return OllamaChat(message=message, **others)


class OllamaGenerateAnswer(_OllamaAnswer):
    """The answer to `POST /api/generate`."""

    def part(self, reply: Reply, others: dict[str, Any]) -> OllamaGenerated:
        return OllamaGenerated(response=reply.text, thinking=reply.reasoning or UNSET, **others)


def arguments_of(call: Call) -> dict[str, Any] | None:
    """Return the arguments of a call as an object; None if their text is none."""
    try:
        arguments = json.loads(call.arguments)
    except (ValueError, RecursionError):
        return None
    return arguments if isinstance(arguments, dict) else None


def nanoseconds(seconds: float) -> int:
    """Return a duration as Ollama's answers have it."""
    return round(seconds * SECOND)

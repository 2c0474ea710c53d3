"""What a call answers with, in OpenAI's words: one object, or a stream of events with one event per token."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from sluice.server.backend import Service
from sluice.server.errors import ApiError
from sluice.server.generation import Generation
from sluice.server.logprobs import chat_logprobs, completion_logprobs, prompt_logprobs
from sluice.server.stream import DONE, event
from sluice.server.text import Piece
from sluice.server.tokens import Tokenizer
from sluice.types import FinishReason, TokenLogprobs


@dataclass(frozen=True, slots=True)
class Choice:
    """One finished choice of an answer that is sent whole."""

    pieces: Sequence[Piece]
    prompt_logprobs: Sequence[TokenLogprobs | None] | None

    @property
    def text(self) -> str:
        return "".join(piece.text for piece in self.pieces)

    @property
    def finish_reason(self) -> FinishReason | None:
        return self.pieces[-1].finish_reason


class Answer(Protocol):
    """How one kind of call spells its answer."""

    def opening(self, index: int) -> dict[str, Any] | None:
        """What comes before the first token of a choice, in a stream."""
        ...

    def chunk(self, index: int, piece: Piece) -> dict[str, Any]:
        """One token in a stream."""
        ...

    def closing(self) -> dict[str, Any]:
        """The event without choices that carries the usage."""
        ...

    def whole(self, choices: Sequence[Choice]) -> dict[str, Any]:
        """The answer in one piece."""
        ...


class CompletionAnswer:
    """The answer to `POST /v1/completions`."""

    def __init__(self, *, id: str, created: int, service: Service) -> None:
        self._head = {"id": f"cmpl-{id}", "object": "text_completion", "created": created, "model": service.model}
        self._tokenizer = service.tokenizer

    def opening(self, index: int) -> dict[str, Any] | None:
        return None

    def chunk(self, index: int, piece: Piece) -> dict[str, Any]:
        return self._head | {"choices": [self._choice(index, piece.text, [piece])]}

    def closing(self) -> dict[str, Any]:
        return self._head | {"choices": []}

    def whole(self, choices: Sequence[Choice]) -> dict[str, Any]:
        return self._head | {
            "choices": [
                self._choice(index, choice.text, choice.pieces)
                | _prompt_logprobs(self._tokenizer, choice.prompt_logprobs)
                for index, choice in enumerate(choices)
            ]
        }

    def _choice(self, index: int, text: str, pieces: Sequence[Piece]) -> dict[str, Any]:
        logprobs = completion_logprobs(self._tokenizer, pieces)
        return {"index": index, "text": text, "logprobs": logprobs, "finish_reason": pieces[-1].finish_reason}


class ChatAnswer:
    """The answer to `POST /v1/chat/completions`."""

    def __init__(self, *, id: str, created: int, service: Service) -> None:
        head = {"id": f"chatcmpl-{id}", "created": created, "model": service.model}
        self._whole_head = head | {"object": "chat.completion"}
        self._chunk_head = head | {"object": "chat.completion.chunk"}
        self._tokenizer = service.tokenizer

    def opening(self, index: int) -> dict[str, Any] | None:
        return self._chunk(index, {"role": "assistant", "content": ""}, None, None)

    def chunk(self, index: int, piece: Piece) -> dict[str, Any]:
        logprobs = chat_logprobs(self._tokenizer, [piece])
        return self._chunk(index, {"content": piece.text}, logprobs, piece.finish_reason)

    def closing(self) -> dict[str, Any]:
        return self._chunk_head | {"choices": []}

    def whole(self, choices: Sequence[Choice]) -> dict[str, Any]:
        answer = self._whole_head | {
            "choices": [
                {
                    "index": index,
                    "message": {"role": "assistant", "content": choice.text},
                    "logprobs": chat_logprobs(self._tokenizer, choice.pieces),
                    "finish_reason": choice.finish_reason,
                }
                for index, choice in enumerate(choices)
            ]
        }
        return answer | _prompt_logprobs(self._tokenizer, choices[0].prompt_logprobs)

    def _chunk(
        self, index: int, delta: dict[str, str], logprobs: dict[str, Any] | None, reason: FinishReason | None
    ) -> dict[str, Any]:
        choice = {"index": index, "delta": delta, "logprobs": logprobs, "finish_reason": reason}
        return self._chunk_head | {"choices": [choice]}


def _prompt_logprobs(tokenizer: Tokenizer, told: Sequence[TokenLogprobs | None] | None) -> dict[str, Any]:
    """The field, if it was asked for."""
    return {} if told is None else {"prompt_logprobs": prompt_logprobs(tokenizer, told)}


async def events(generation: Generation, answer: Answer, *, include_usage: bool) -> AsyncGenerator[bytes, None]:
    """The call as server-sent events. Tokens that arrived together are sent together, each as its own event.

    With `include_usage` every event has a `usage`, null but for the last. A failure is an event with an `error`, and
    no `[DONE]` follows it.
    """
    no_usage: dict[str, Any] = {"usage": None} if include_usage else {}
    try:
        with generation:
            openings = [answer.opening(index) for index in range(generation.num_choices)]
            if any(openings):
                yield b"".join(event(opening | no_usage) for opening in openings if opening is not None)
            async for pieces in generation.pieces():
                yield b"".join(event(answer.chunk(index, piece) | no_usage) for index, piece in pieces)
            end = event(answer.closing() | {"usage": generation.usage().as_json()}) if include_usage else b""
            yield end + DONE
    except ApiError as error:
        yield event(error.body())


async def whole(generation: Generation, answer: Answer) -> dict[str, Any]:
    """The call as one object.

    Raises:
        ApiError: 500 or 503, the engine failed it.
    """
    pieces: list[list[Piece]] = [[] for _ in range(generation.num_choices)]
    with generation:
        async for arrived in generation.pieces():
            for index, piece in arrived:
                pieces[index].append(piece)
        choices = [Choice(own, generation.prompt_logprobs(index)) for index, own in enumerate(pieces)]
        assert all(choice.finish_reason is not None for choice in choices), choices
        return answer.whole(choices) | {"usage": generation.usage().as_json()}

"""What a call answers with, in OpenAI's words: one object, or a stream of events with one event per token."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from typing import Any, Protocol

from sluice.server.errors import ApiError
from sluice.server.generation import Generation
from sluice.server.stream import DONE, event
from sluice.server.text import Piece
from sluice.types import FinishReason


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

    def whole(self, choices: Sequence[tuple[str, FinishReason]]) -> dict[str, Any]:
        """The answer in one piece: text and finish reason of each choice."""
        ...


class CompletionAnswer:
    """The answer to `POST /v1/completions`."""

    def __init__(self, *, id: str, created: int, model: str) -> None:
        self._head = {"id": f"cmpl-{id}", "object": "text_completion", "created": created, "model": model}

    def opening(self, index: int) -> dict[str, Any] | None:
        return None

    def chunk(self, index: int, piece: Piece) -> dict[str, Any]:
        return self._head | {"choices": [self._choice(index, piece.text, piece.finish_reason)]}

    def closing(self) -> dict[str, Any]:
        return self._head | {"choices": []}

    def whole(self, choices: Sequence[tuple[str, FinishReason]]) -> dict[str, Any]:
        return self._head | {"choices": [self._choice(i, text, reason) for i, (text, reason) in enumerate(choices)]}

    @staticmethod
    def _choice(index: int, text: str, reason: FinishReason | None) -> dict[str, Any]:
        return {"index": index, "text": text, "logprobs": None, "finish_reason": reason}


class ChatAnswer:
    """The answer to `POST /v1/chat/completions`."""

    def __init__(self, *, id: str, created: int, model: str) -> None:
        head = {"id": f"chatcmpl-{id}", "created": created, "model": model}
        self._whole_head = head | {"object": "chat.completion"}
        self._chunk_head = head | {"object": "chat.completion.chunk"}

    def opening(self, index: int) -> dict[str, Any] | None:
        return self._chunk(index, {"role": "assistant", "content": ""}, None)

    def chunk(self, index: int, piece: Piece) -> dict[str, Any]:
        return self._chunk(index, {"content": piece.text}, piece.finish_reason)

    def closing(self) -> dict[str, Any]:
        return self._chunk_head | {"choices": []}

    def whole(self, choices: Sequence[tuple[str, FinishReason]]) -> dict[str, Any]:
        return self._whole_head | {
            "choices": [
                {
                    "index": index,
                    "message": {"role": "assistant", "content": text},
                    "logprobs": None,
                    "finish_reason": reason,
                }
                for index, (text, reason) in enumerate(choices)
            ]
        }

    def _chunk(self, index: int, delta: dict[str, str], reason: FinishReason | None) -> dict[str, Any]:
        choice = {"index": index, "delta": delta, "logprobs": None, "finish_reason": reason}
        return self._chunk_head | {"choices": [choice]}


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
    texts: list[list[str]] = [[] for _ in range(generation.num_choices)]
    reasons: list[FinishReason | None] = [None] * generation.num_choices
    with generation:
        async for pieces in generation.pieces():
            for index, piece in pieces:
                texts[index].append(piece.text)
                reasons[index] = piece.finish_reason
        choices = [("".join(text), reason) for text, reason in zip(texts, reasons, strict=True) if reason is not None]
        assert len(choices) == generation.num_choices, reasons
        return answer.whole(choices) | {"usage": generation.usage().as_json()}

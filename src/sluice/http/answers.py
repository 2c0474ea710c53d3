"""What a call answers with, in OpenAI's words: one object, or a stream of events with one event per token."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from sluice.http.backend import Service
from sluice.http.errors import ApiError
from sluice.http.generation import Generation, Usage
from sluice.http.logprobs import chat_logprobs, completion_logprobs, prompt_logprobs, told_of_pieces, told_of_prompt
from sluice.http.sse import DONE, event
from sluice.text.text_stream import Piece
from sluice.text.tokenizer import Tokenizer
from sluice.types import FinishReason, TokenLogprobs


@dataclass(frozen=True, slots=True)
class Choice:
    """One finished choice of an answer that is sent whole."""

    pieces: Sequence[Piece]
    prompt: Sequence[int]
    prompt_logprobs: Sequence[TokenLogprobs | None] | None

    @property
    def text(self) -> str:
        return "".join(piece.text for piece in self.pieces)

    @property
    def finish_reason(self) -> FinishReason | None:
        return self.pieces[-1].finish_reason


@dataclass(frozen=True, slots=True)
class Head:
    """What every answer of a call carries."""

    id: str
    created: int
    """Unix seconds."""
    service: Service


class Answer(Protocol):
    """How one kind of call spells its answer."""

    def opening(self, index: int) -> dict[str, Any] | None:
        """What comes before the first token of a choice, in a stream."""
        ...

    def chunk(self, index: int, piece: Piece) -> dict[str, Any]:
        """One token in a stream."""
        ...

    def closing(self, usage: Usage) -> dict[str, Any] | None:
        """What comes behind the last token of all, in a stream."""
        ...

    def whole(self, choices: Sequence[Choice], usage: Usage) -> Any:
        """The answer in one piece."""
        ...


class CompletionAnswer:
    """The answer to `POST /v1/completions`.

    Args:
        head: of this call.
        echo: text of each choice's prompt, which comes before the completion; empty if nobody asked for it.
        tells_prompt_logprobs: the answer has a field for them.
        include_usage: in a stream, every event has a `usage`, null but for the last.
    """

    def __init__(
        self, head: Head, *, echo: Sequence[str], tells_prompt_logprobs: bool = False, include_usage: bool = False
    ) -> None:
        self._head: dict[str, Any] = {
            "id": f"cmpl-{head.id}",
            "object": "text_completion",
            "created": head.created,
            "model": head.service.model,
        }
        self._event_head = self._head | _no_usage(include_usage)
        self._tokenizer = head.service.tokenizer
        self._echo = echo
        self._tells_prompt_logprobs = tells_prompt_logprobs
        self._include_usage = include_usage

    def opening(self, index: int) -> dict[str, Any] | None:
        if not self._echo:
            return None
        choice = {"index": index, "text": self._echo[index], "logprobs": None, "finish_reason": None}
        return self._event_head | {"choices": [choice]}

    def chunk(self, index: int, piece: Piece) -> dict[str, Any]:
        offset = len(self._echo[index]) if self._echo else 0
        logprobs = (
            None if piece.logprobs is None else completion_logprobs(self._tokenizer, told_of_pieces([piece], offset))
        )
        choice = {"index": index, "text": piece.text, "logprobs": logprobs, "finish_reason": piece.finish_reason}
        return self._event_head | {"choices": [choice]}

    def closing(self, usage: Usage) -> dict[str, Any] | None:
        return self._head | {"choices": [], "usage": usage.as_json()} if self._include_usage else None

    def whole(self, choices: Sequence[Choice], usage: Usage) -> dict[str, Any]:
        told = [self._choice(index, choice) for index, choice in enumerate(choices)]
        return self._head | {"choices": told, "usage": usage.as_json()}

    def _choice(self, index: int, choice: Choice) -> dict[str, Any]:
        echo = self._echo[index] if self._echo else ""
        told = told_of_pieces(choice.pieces, len(echo))
        if echo and choice.prompt_logprobs is not None:
            told = told_of_prompt(self._tokenizer, choice.prompt, choice.prompt_logprobs) + told
        whole = {
            "index": index,
            "text": echo + choice.text,
            "logprobs": completion_logprobs(self._tokenizer, told),
            "finish_reason": choice.finish_reason,
        }
        if self._tells_prompt_logprobs:
            whole |= _prompt_logprobs(self._tokenizer, choice.prompt_logprobs)
        return whole


class ChatAnswer:
    """The answer to `POST /v1/chat/completions`.

    Args:
        head: of this call.
        include_usage: in a stream, every event has a `usage`, null but for the last.
    """

    def __init__(self, head: Head, *, include_usage: bool = False) -> None:
        common = {"id": f"chatcmpl-{head.id}", "created": head.created, "model": head.service.model}
        self._whole_head: dict[str, Any] = common | {"object": "chat.completion"}
        self._chunk_head: dict[str, Any] = common | {"object": "chat.completion.chunk"}
        self._event_head = self._chunk_head | _no_usage(include_usage)
        self._tokenizer = head.service.tokenizer
        self._include_usage = include_usage

    def opening(self, index: int) -> dict[str, Any] | None:
        return self._chunk(index, {"role": "assistant", "content": ""}, None, None)

    def chunk(self, index: int, piece: Piece) -> dict[str, Any]:
        logprobs = None if piece.logprobs is None else chat_logprobs(self._tokenizer, [piece])
        return self._chunk(index, {"content": piece.text}, logprobs, piece.finish_reason)

    def closing(self, usage: Usage) -> dict[str, Any] | None:
        return self._chunk_head | {"choices": [], "usage": usage.as_json()} if self._include_usage else None

    def whole(self, choices: Sequence[Choice], usage: Usage) -> dict[str, Any]:
        told = [
            {
                "index": index,
                "message": {"role": "assistant", "content": choice.text},
                "logprobs": chat_logprobs(self._tokenizer, choice.pieces),
                "finish_reason": choice.finish_reason,
            }
            for index, choice in enumerate(choices)
        ]
        answer = self._whole_head | {"choices": told} | _prompt_logprobs(self._tokenizer, choices[0].prompt_logprobs)
        return answer | {"usage": usage.as_json()}

    def _chunk(
        self, index: int, delta: dict[str, str], logprobs: dict[str, Any] | None, reason: FinishReason | None
    ) -> dict[str, Any]:
        choice = {"index": index, "delta": delta, "logprobs": logprobs, "finish_reason": reason}
        return self._event_head | {"choices": [choice]}


def _no_usage(include_usage: bool) -> dict[str, Any]:
    return {"usage": None} if include_usage else {}


def _prompt_logprobs(tokenizer: Tokenizer, told: Sequence[TokenLogprobs | None] | None) -> dict[str, Any]:
    """The field, if it was asked for."""
    return {} if told is None else {"prompt_logprobs": prompt_logprobs(tokenizer, told)}


async def events(
    generation: Generation, answer: Answer, *, continuous_usage: bool = False
) -> AsyncGenerator[bytes, None]:
    """The call as server-sent events. Tokens that arrived together are sent together, each as its own event.

    With `continuous_usage` each tells the usage of its choice so far.

    Nothing comes before the first token, so that what fails until then is an answer with a status of its own. A later
    failure is an event with an `error`, and no `[DONE]` follows it.

    Raises:
        ApiError: as `Generation.pieces`, before the first event.
    """
    has_begun = False
    told = _told(generation, answer) if continuous_usage else answer.chunk
    try:
        with generation:
            async for pieces in generation.pieces():
                data = [] if has_begun else _openings(generation, answer)
                data += [event(told(index, piece)) for index, piece in pieces]
                if data:
                    has_begun = True
                    yield b"".join(data)
            closing = answer.closing(generation.usage())
            yield (b"" if closing is None else event(closing)) + DONE
    except ApiError as error:
        if not has_begun:
            raise
        yield event(error.body())


def _told(generation: Generation, answer: Answer) -> Callable[[int, Piece], dict[str, Any]]:
    """`answer.chunk` with a usage in each."""
    counts = [0] * generation.num_choices

    def chunk(index: int, piece: Piece) -> dict[str, Any]:
        counts[index] += piece.token_id is not None
        usage = Usage(len(generation.prompt_of(index)), generation.cached_of(index), counts[index])
        return answer.chunk(index, piece) | {"usage": usage.as_json()}

    return chunk


def _openings(generation: Generation, answer: Answer) -> list[bytes]:
    openings = [answer.opening(index) for index in range(generation.num_choices)]
    return [event(opening) for opening in openings if opening is not None]


async def whole(generation: Generation, answer: Answer) -> Any:
    """The call as one object.

    Raises:
        ApiError: as `Generation.pieces`.
    """
    pieces: list[list[Piece]] = [[] for _ in range(generation.num_choices)]
    with generation:
        async for arrived in generation.pieces():
            for index, piece in arrived:
                pieces[index].append(piece)
        choices = [
            Choice(own, generation.prompt_of(index), generation.prompt_logprobs(index))
            for index, own in enumerate(pieces)
        ]
        assert all(choice.finish_reason is not None for choice in choices), choices
        return answer.whole(choices, generation.usage())

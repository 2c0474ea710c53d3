"""Answers in OpenAI's form: one object, or a stream of server-sent events with one event per token."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

import msgspec
from starlette.responses import StreamingResponse
from starlette.types import Receive, Scope, Send

from sluice.http.backend import Service
from sluice.http.errors import ApiError
from sluice.http.generate_call import GenerateCall
from sluice.http.generation import Generation, Usage
from sluice.http.logprobs import chat_logprobs, completion_logprobs, prompt_logprobs, scored_pieces, scored_prompt
from sluice.http.openai import ChatFields, CompletionFields
from sluice.text.text_stream import Piece
from sluice.types import FinishReason

T = TypeVar("T")
DONE = b"data: [DONE]\n\n"


@dataclass(frozen=True, slots=True)
class Head:
    """What every answer of a call carries."""

    id: str
    created: int
    """Unix seconds."""
    service: Service


class Answer(Protocol):
    """How one route spells its answer."""

    def opening(self, index: int) -> dict[str, Any] | None:
        """Return what comes before the first token of a choice, in a stream."""
        ...

    def chunk(self, index: int, piece: Piece) -> dict[str, Any]:
        """Return one token of a choice, in a stream."""
        ...

    def closing(self, usage: Usage) -> dict[str, Any] | None:
        """Return what comes behind the last token of all choices, in a stream."""
        ...

    def whole(self, choices: Sequence[Sequence[Piece]], usage: Usage) -> Any:
        """Return the answer in one piece, from all pieces of each choice."""
        ...


def text_of(pieces: Sequence[Piece]) -> str:
    return "".join(piece.text for piece in pieces)


class CompletionAnswer:
    """The answer to `POST /v1/completions`.

    Args:
        head: of this call.
        generation: the prompts of its choices.
    """

    def __init__(self, head: Head, call: GenerateCall[CompletionFields], generation: Generation) -> None:
        self._head: dict[str, Any] = {
            "id": f"cmpl-{head.id}",
            "object": "text_completion",
            "created": head.created,
            "model": head.service.model,
        }
        self._event_head = self._head | _null_usage(call)
        self._tokenizer = head.service.tokenizer
        self._call = call
        self._generation = generation
        self._echo = self._prompt_texts() if call.fields.echo else []

    def _prompt_texts(self) -> list[str]:
        """Return the prompt of each choice as the client wrote it, or what its token ids spell."""
        samples = self._call.sampling.n
        texts = [
            prompt if isinstance(prompt, str) else self._tokenizer.decode(choice.prompt)
            for prompt, choice in zip(self._call.prompts, self._generation.choices[::samples], strict=True)
        ]
        return [text for text in texts for _ in range(samples)]

    def opening(self, index: int) -> dict[str, Any] | None:
        if not self._echo:
            return None
        choice = {"index": index, "text": self._echo[index], "logprobs": None, "finish_reason": None}
        return self._event_head | {"choices": [choice]}

    def chunk(self, index: int, piece: Piece) -> dict[str, Any]:
        offset = len(self._echo[index]) if self._echo else 0
        logprobs = completion_logprobs(self._tokenizer, scored_pieces([piece], offset))
        choice = {"index": index, "text": piece.text, "logprobs": logprobs, "finish_reason": piece.finish_reason}
        return self._event_head | {"choices": [choice]}

    def closing(self, usage: Usage) -> dict[str, Any] | None:
        return self._head | {"choices": [], "usage": usage.as_json()} if self._call.include_usage else None

    def whole(self, choices: Sequence[Sequence[Piece]], usage: Usage) -> dict[str, Any]:
        answers = [self._choice(index, pieces) for index, pieces in enumerate(choices)]
        return self._head | {"choices": answers, "usage": usage.as_json()}

    def _choice(self, index: int, pieces: Sequence[Piece]) -> dict[str, Any]:
        echo = self._echo[index] if self._echo else ""
        in_prompt = self._generation.prompt_logprobs(index)
        logprobs = scored_pieces(pieces, len(echo))
        if echo and in_prompt is not None:
            logprobs = scored_prompt(self._tokenizer, self._generation.choices[index].prompt, in_prompt) + logprobs
        choice = {
            "index": index,
            "text": echo + text_of(pieces),
            "logprobs": completion_logprobs(self._tokenizer, logprobs),
            "finish_reason": pieces[-1].finish_reason,
        }
        if self._call.fields.prompt_logprobs is not None and in_prompt is not None:
            choice["prompt_logprobs"] = prompt_logprobs(self._tokenizer, in_prompt)
        return choice


class ChatAnswer:
    """The answer to `POST /v1/chat/completions`.

    Args:
        head: of this call.
    """

    def __init__(self, head: Head, call: GenerateCall[ChatFields], generation: Generation) -> None:
        self._head: dict[str, Any] = {
            "id": f"chatcmpl-{head.id}",
            "created": head.created,
            "model": head.service.model,
        }
        self._chunk_head = self._head | {"object": "chat.completion.chunk"}
        self._event_head = self._chunk_head | _null_usage(call)
        self._tokenizer = head.service.tokenizer
        self._include_usage = call.include_usage
        self._generation = generation

    def opening(self, index: int) -> dict[str, Any] | None:
        return self._chunk(index, {"role": "assistant", "content": ""}, None, None)

    def chunk(self, index: int, piece: Piece) -> dict[str, Any]:
        logprobs = chat_logprobs(self._tokenizer, [piece])
        return self._chunk(index, {"content": piece.text}, logprobs, piece.finish_reason)

    def closing(self, usage: Usage) -> dict[str, Any] | None:
        return self._chunk_head | {"choices": [], "usage": usage.as_json()} if self._include_usage else None

    def whole(self, choices: Sequence[Sequence[Piece]], usage: Usage) -> dict[str, Any]:
        answers = [
            {
                "index": index,
                "message": {"role": "assistant", "content": text_of(pieces)},
                "logprobs": chat_logprobs(self._tokenizer, pieces),
                "finish_reason": pieces[-1].finish_reason,
            }
            for index, pieces in enumerate(choices)
        ]
        answer = self._head | {"object": "chat.completion", "choices": answers}
        if (in_prompt := self._generation.prompt_logprobs(0)) is not None:
            answer["prompt_logprobs"] = prompt_logprobs(self._tokenizer, in_prompt)
        return answer | {"usage": usage.as_json()}

    def _chunk(
        self, index: int, delta: dict[str, str], logprobs: dict[str, Any] | None, reason: FinishReason | None
    ) -> dict[str, Any]:
        choice = {"index": index, "delta": delta, "logprobs": logprobs, "finish_reason": reason}
        return self._event_head | {"choices": [choice]}


def _null_usage(call: GenerateCall[Any]) -> dict[str, Any]:
    """Return the `usage` that OpenAI's events have if the last one brings the counts."""
    return {"usage": None} if call.include_usage else {}


async def whole(generation: Generation, answer: Answer) -> Any:
    """Return the answer of a call as one object.

    Raises:
        ApiError: as `Generation.pieces`.
    """
    pieces: list[list[Piece]] = [[] for _ in generation.choices]
    with generation:
        async for arrived in generation.pieces():
            for index, piece in arrived:
                pieces[index].append(piece)
        return answer.whole(pieces, generation.usage())


async def events(
    generation: Generation, answer: Answer, *, continuous_usage: bool = False
) -> AsyncGenerator[bytes, None]:
    """Yield the answer of a call as server-sent events. Tokens that arrived together are sent together, an event each.

    Nothing comes before the first token, so a call that fails until then can be answered with an error's status. A
    later failure is an event with an `error`, and no `[DONE]` follows it.

    Args:
        continuous_usage: each event has the usage of its choice so far.

    Raises:
        ApiError: as `Generation.pieces`, before the first event.
    """
    has_begun = False
    chunk = _chunks_with_usage(generation, answer) if continuous_usage else answer.chunk
    try:
        with generation:
            async for pieces in generation.pieces():
                data: list[dict[str, Any] | None]
                data = [] if has_begun else [answer.opening(index) for index in range(len(generation.choices))]
                data += [chunk(index, piece) for index, piece in pieces]
                if sent := b"".join(map(_event, filter(None, data))):
                    has_begun = True
                    yield sent
            yield b"".join(map(_event, filter(None, [answer.closing(generation.usage())]))) + DONE
    except ApiError as error:
        if not has_begun:
            raise
        yield _event(error.body())


def _event(content: Any) -> bytes:
    return b"data: " + msgspec.json.encode(content) + b"\n\n"


def _chunks_with_usage(generation: Generation, answer: Answer) -> Callable[[int, Piece], dict[str, Any]]:
    """Return `answer.chunk` with the usage of the choice so far in each chunk."""
    counts = [0] * len(generation.choices)

    def chunk(index: int, piece: Piece) -> dict[str, Any]:
        counts[index] += piece.token_id is not None
        choice = generation.choices[index]
        usage = Usage(len(choice.prompt), choice.cached, counts[index])
        return answer.chunk(index, piece) | {"usage": usage.as_json()}

    return chunk


class EventStream(StreamingResponse):
    """Server-sent events. Their generator is closed as soon as the client leaves, even if no event comes.

    Args:
        first: the events that have been generated already.
    """

    media_type = "text/event-stream"

    def __init__(self, first: bytes, events: AsyncGenerator[bytes, None]) -> None:
        super().__init__(_chained(first, events), headers={"cache-control": "no-cache", "x-accel-buffering": "no"})
        self._events = events

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await unless_disconnected(receive, self.stream_response(send))

    async def stream_response(self, send: Send) -> None:
        async with aclosing(self._events):
            await super().stream_response(send)


async def _chained(first: bytes, events: AsyncGenerator[bytes, None]) -> AsyncIterator[bytes]:
    yield first
    async for event in events:
        yield event


async def unless_disconnected(receive: Receive, work: Awaitable[T]) -> T | None:
    """Return the result of `work`, or None if the client left first; the work is cancelled and over then.

    `receive` must have given the whole body of the request already.
    """
    working = asyncio.ensure_future(work)
    leaving = asyncio.create_task(_disconnected(receive))
    try:
        await asyncio.wait({working, leaving}, return_when=asyncio.FIRST_COMPLETED)
    finally:
        leaving.cancel()
        if not working.done():
            working.cancel()
        await asyncio.wait({working, leaving})
    return None if working.cancelled() else working.result()


async def _disconnected(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass

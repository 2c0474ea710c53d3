"""Answers in OpenAI's form: one object, or a stream of server-sent events with one event per token."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import aclosing
from typing import Any, Protocol, TypeVar

import msgspec
from starlette.responses import StreamingResponse
from starlette.types import Receive, Scope, Send

from sluice.http.errors import ApiError
from sluice.http.generate_call import GenerateCall
from sluice.http.generation import Generation, Usage
from sluice.http.logprobs import chat_logprobs, completion_logprobs, prompt_logprobs, scored_pieces, scored_prompt
from sluice.http.openai import ChatFields, CompletionFields
from sluice.text.text_stream import Piece

T = TypeVar("T")
DONE = b"data: [DONE]\n\n"


class Answer(Protocol):
    """How one route spells its answer."""

    def opening(self, index: int) -> dict[str, Any] | None:
        """Return what comes before the first token of a choice, in a stream."""
        ...

    def chunk(self, index: int, piece: Piece) -> dict[str, Any]:
        """Return one token of a choice, in a stream."""
        ...

    def closing(self, usage: Usage) -> dict[str, Any] | None:
        """Return what comes after the last token of all choices, in a stream."""
        ...

    def whole(self, choices: Sequence[Sequence[Piece]], usage: Usage) -> Any:
        """Return the answer in one piece, from all pieces of each choice."""
        ...


def text_of(pieces: Sequence[Piece]) -> str:
    return "".join(piece.text for piece in pieces)


class _OpenAIAnswer:
    """What the answers of completions and chats have in common.

    Args:
        prefix: of the id.
        kind: the `object` of a whole answer.
        event_kind: the `object` of an event.
    """

    def __init__(
        self, call: GenerateCall[Any], generation: Generation, *, prefix: str, kind: str, event_kind: str
    ) -> None:
        service = generation.service

        def head(kind: str) -> dict[str, Any]:
            id = f"{prefix}-{generation.id}"
            return {"id": id, "object": kind, "created": generation.created, "model": service.model}

        self._head, self._last_head = head(kind), head(event_kind)
        # As in OpenAI's streams, `usage` is null in all events but the last if that one brings the counts.
        self._event_head = self._last_head | ({"usage": None} if call.include_usage else {})
        self._include_usage = call.include_usage
        self._generation = generation
        self._tokenizer = service.tokenizer

    def _event(self, choice: dict[str, Any]) -> dict[str, Any]:
        return self._event_head | {"choices": [choice]}

    def closing(self, usage: Usage) -> dict[str, Any] | None:
        return self._last_head | {"choices": [], "usage": usage.as_json()} if self._include_usage else None


class CompletionAnswer(_OpenAIAnswer):
    """The answer to `POST /v1/completions`."""

    def __init__(self, call: GenerateCall[CompletionFields], generation: Generation) -> None:
        super().__init__(call, generation, prefix="cmpl", kind="text_completion", event_kind="text_completion")
        self._has_prompt_logprobs = call.fields.prompt_logprobs is not None
        self._echo: list[str] = []
        """The prompt of each choice as the client wrote it, or what its token ids spell."""
        if call.fields.echo:
            samples = call.sampling.n
            for prompt, choice in zip(call.prompts, generation.choices[::samples], strict=True):
                text = prompt if isinstance(prompt, str) else self._tokenizer.decode(choice.prompt)
                self._echo += [text] * samples

    def opening(self, index: int) -> dict[str, Any] | None:
        if not self._echo:
            return None
        return self._event({"index": index, "text": self._echo[index], "logprobs": None, "finish_reason": None})

    def chunk(self, index: int, piece: Piece) -> dict[str, Any]:
        offset = len(self._echo[index]) if self._echo else 0
        logprobs = completion_logprobs(self._tokenizer, scored_pieces([piece], offset))
        return self._event(
            {"index": index, "text": piece.text, "logprobs": logprobs, "finish_reason": piece.finish_reason}
        )

    def whole(self, choices: Sequence[Sequence[Piece]], usage: Usage) -> dict[str, Any]:
        answers = [self._choice(index, pieces) for index, pieces in enumerate(choices)]
        return self._head | {"choices": answers, "usage": usage.as_json()}

    def _choice(self, index: int, pieces: Sequence[Piece]) -> dict[str, Any]:
        echo = self._echo[index] if self._echo else ""
        in_prompt = self._generation.prompt_logprobs(index)
        scored = scored_pieces(pieces, len(echo))
        if echo and in_prompt is not None:
            scored = scored_prompt(self._tokenizer, self._generation.choices[index].prompt, in_prompt) + scored
        choice = {
            "index": index,
            "text": echo + text_of(pieces),
            "logprobs": completion_logprobs(self._tokenizer, scored),
            "finish_reason": pieces[-1].finish_reason,
        }
        if self._has_prompt_logprobs and in_prompt is not None:
            choice["prompt_logprobs"] = prompt_logprobs(self._tokenizer, in_prompt)
        return choice


class ChatAnswer(_OpenAIAnswer):
    """The answer to `POST /v1/chat/completions`."""

    def __init__(self, call: GenerateCall[ChatFields], generation: Generation) -> None:
        kind = "chat.completion"
        super().__init__(call, generation, prefix="chatcmpl", kind=kind, event_kind=f"{kind}.chunk")

    def opening(self, index: int) -> dict[str, Any] | None:
        delta = {"role": "assistant", "content": ""}
        return self._event({"index": index, "delta": delta, "logprobs": None, "finish_reason": None})

    def chunk(self, index: int, piece: Piece) -> dict[str, Any]:
        logprobs = chat_logprobs(self._tokenizer, [piece])
        delta = {"content": piece.text}
        return self._event({"index": index, "delta": delta, "logprobs": logprobs, "finish_reason": piece.finish_reason})

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
        answer = self._head | {"choices": answers}
        if (in_prompt := self._generation.prompt_logprobs(0)) is not None:
            answer["prompt_logprobs"] = prompt_logprobs(self._tokenizer, in_prompt)
        return answer | {"usage": usage.as_json()}


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
        super().__init__(events, headers={"cache-control": "no-cache", "x-accel-buffering": "no"})
        self._first = first
        self._events = events

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await unless_disconnected(receive, self.stream_response(send))

    async def stream_response(self, send: Send) -> None:
        async with aclosing(self._events):
            await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
            await send({"type": "http.response.body", "body": self._first, "more_body": True})
            async for data in self._events:
                await send({"type": "http.response.body", "body": data, "more_body": True})
            await send({"type": "http.response.body", "body": b"", "more_body": False})


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

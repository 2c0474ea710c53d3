"""Answers as one object, or as a stream of events, and their content in OpenAI's form with an event per token."""

from __future__ import annotations

import asyncio
import itertools
from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, Awaitable, Iterable, Iterator, Sequence
from contextlib import aclosing
from dataclasses import replace
from typing import Any, Protocol, TypeVar

from starlette.responses import Response, StreamingResponse
from starlette.types import Receive, Scope, Send

from sluice.http.base.errors import ApiError
from sluice.http.base.framing import SERVER_SENT, Framing
from sluice.http.base.heartbeats import PROGRESS_SECONDS, SILENT_SECONDS, Heartbeats
from sluice.http.base.progress import Progress
from sluice.http.base.turns import Turns, fragments, in_turns, json_list, pieces
from sluice.http.call.generate_call import GenerateCall
from sluice.http.call.generation import Choice, Generation, Usage
from sluice.http.call.logprobs import (
    ScoredToken,
    chat_logprobs,
    completion_logprobs,
    offsets_of,
    prompt_logprobs,
    prompt_offsets,
    scored_pieces,
)
from sluice.http.call.openai import ChatFields, CompletionFields
from sluice.http.call.replies import ReplyReader, delta_of, message_of
from sluice.text.parsers.events import Reply
from sluice.text.text_stream import Piece

T = TypeVar("T")


class Answer(Protocol):
    """How one route spells its answer."""

    @property
    def framing(self) -> Framing:
        """How its streams are framed."""
        ...

    def opening(self, index: int) -> Iterable[dict[str, Any]]:
        """Yield what comes before the first token of a choice, in a stream."""
        ...

    def chunks(self, arrived: Sequence[tuple[int, Piece]]) -> Iterable[dict[str, Any]]:
        """Yield the events of a stream for pieces that arrived together, each with the index of its choice."""
        ...

    def waiting(self, progress: Progress | None) -> Iterable[dict[str, Any]]:
        """Yield the events that say that the answer goes on while no token comes; none if a comment is enough.

        Args:
            progress: of the prompts, if the call asks for it and none is read.
        """
        ...

    def closing(self, usage: Usage) -> Iterable[dict[str, Any]]:
        """Yield what comes after the last token of all choices, in a stream."""
        ...

    def whole(self, choices: Sequence[Sequence[Piece]], usage: Usage) -> Any:
        """Return the answer in one piece, from all pieces of each choice."""
        ...


def text_of(pieces: Sequence[Piece]) -> str:
    return "".join(piece.text for piece in pieces)


class _OpenAIAnswer(ABC):
    """What the answers of completions and chats have in common: one event for each token.

    Args:
        prefix: of the id.
        kind: the `object` of a whole answer.
        event_kind: the `object` of an event.
    """

    framing = SERVER_SENT

    def __init__(
        self, call: GenerateCall[Any], generation: Generation, *, prefix: str, kind: str, event_kind: str
    ) -> None:
        service = generation.service

        def head(kind: str) -> dict[str, Any]:
            id = f"{prefix}-{generation.id}"
            head = {"id": id, "object": kind, "created": generation.created, "model": service.model}
            return head | {"store": False} if call.fields.store else head

        self._head, self._last_head = head(kind), head(event_kind)
        # As in OpenAI's streams, `usage` is null in all events but the last if that one brings the counts.
        self._event_head = self._last_head | ({"usage": None} if call.include_usage else {})
        self._include_usage = call.include_usage
        self._returns_ids = bool(call.fields.return_token_ids)
        self._has_continuous_usage = call.continuous_usage
        self._counts = [0] * len(generation.choices)
        self._generation = generation
        self._tokenizer = service.tokenizer

    def _event(self, choice: dict[str, Any]) -> dict[str, Any]:
        return self._event_head | {"choices": [choice]}

    @abstractmethod
    def chunk(self, index: int, piece: Piece) -> dict[str, Any]:
        """Return the event of one token of a choice."""

    def chunks(self, arrived: Sequence[tuple[int, Piece]]) -> Iterator[dict[str, Any]]:
        for index, piece in arrived:
            chunk = self.chunk(index, piece)
            yield chunk | self._usage(index, piece) if self._has_continuous_usage else chunk

    def _ids(self, pieces: Sequence[Piece]) -> dict[str, Any]:
        """Return the ids of some pieces, if the call asks for them."""
        if not self._returns_ids:
            return {}
        ids = [piece.token_id for piece in pieces if piece.token_id is not None]
        return {"token_ids": json_list(ids, len(ids))}

    def _prompt_ids(self, index: int) -> dict[str, Any]:
        """Return the ids of a choice's prompt, if the call asks for them."""
        if not self._returns_ids:
            return {}
        prompt = self._generation.choices[index].prompt
        return {"prompt_token_ids": json_list(prompt, len(prompt))}

    def _usage(self, index: int, piece: Piece) -> dict[str, Any]:
        """Return the usage of a choice so far."""
        self._counts[index] += piece.token_id is not None
        choice = self._generation.choices[index]
        return {"usage": Usage(len(choice.prompt), choice.cached, self._counts[index]).as_json()}

    def waiting(self, progress: Progress | None) -> list[dict[str, Any]]:
        return [] if progress is None else [self._event_head | {"choices": [], "progress": progress.as_json()}]

    def closing(self, usage: Usage) -> list[dict[str, Any]]:
        return [self._last_head | {"choices": [], "usage": usage.as_json()}] if self._include_usage else []


class CompletionAnswer(_OpenAIAnswer):
    """The answer to `POST /v1/completions`."""

    def __init__(self, call: GenerateCall[CompletionFields], generation: Generation) -> None:
        super().__init__(call, generation, prefix="cmpl", kind="text_completion", event_kind="text_completion")
        self._has_prompt_logprobs = call.fields.prompt_logprobs is not None
        self._echo: list[str] = []
        """The prompt of each choice as the client wrote it, or what its token ids spell."""
        self._skips_special: list[bool] = []
        """Whether a choice's prompt is repeated without special tokens; those in a text of the client's stay."""
        self._num_added: list[int] = []
        """Special tokens that the tokenizer put before the prompt of each choice."""
        if call.fields.echo:
            samples = call.sampling.n
            for prompt, choice in zip(call.prompts, generation.choices[::samples], strict=True):
                text = prompt if isinstance(prompt, str) else self._spelled(call, choice)
                self._echo += [text] * samples
                skips_special = call.text.skip_special_tokens and not isinstance(prompt, str)
                self._skips_special += [skips_special] * samples
                is_marked = isinstance(prompt, str) and call.add_special_tokens
                self._num_added += [self._tokenizer.num_special_before if is_marked else 0] * samples

    def _spelled(self, call: GenerateCall[CompletionFields], choice: Choice) -> str:
        return self._tokenizer.decode(choice.prompt, skip_special_tokens=call.text.skip_special_tokens)

    def opening(self, index: int) -> list[dict[str, Any]]:
        if not (self._echo or self._returns_ids):
            return []
        echo = self._echo[index] if self._echo else ""
        choice = {"index": index, "text": echo, "logprobs": None, "finish_reason": None}
        return [self._event(choice | self._prompt_ids(index))]

    def chunk(self, index: int, piece: Piece) -> dict[str, Any]:
        offset = len(self._echo[index]) if self._echo else 0
        logprobs = completion_logprobs(self._tokenizer, scored_pieces([piece]), offsets_of([piece], offset))
        choice = {"index": index, "text": piece.text, "logprobs": logprobs, "finish_reason": piece.finish_reason}
        return self._event(choice | self._ids([piece]) if self._returns_ids else choice)

    def whole(self, choices: Sequence[Sequence[Piece]], usage: Usage) -> dict[str, Any]:
        answers = (self._choice(index, pieces) for index, pieces in enumerate(choices))
        return self._head | {"choices": json_list(answers, len(choices)), "usage": usage.as_json()}

    def _choice(self, index: int, pieces: Sequence[Piece]) -> dict[str, Any]:
        echo = self._echo[index] if self._echo else ""
        in_prompt = self._generation.prompt_logprobs(index)
        scored, offsets = scored_pieces(pieces), offsets_of(pieces, len(echo))
        if echo and in_prompt is not None:
            prompt = self._generation.choices[index].prompt
            scored = [*map(ScoredToken, prompt, in_prompt), *scored]
            added, skips_special = self._num_added[index], self._skips_special[index]
            own = prompt_offsets(self._tokenizer, prompt, added, skip_special_tokens=skips_special)
            offsets = itertools.chain(own, offsets)
        choice = {
            "index": index,
            "text": echo + text_of(pieces),
            "logprobs": completion_logprobs(self._tokenizer, scored, offsets),
            "finish_reason": pieces[-1].finish_reason,
        }
        if self._has_prompt_logprobs and in_prompt is not None:
            choice["prompt_logprobs"] = prompt_logprobs(self._tokenizer, in_prompt)
        return choice | self._prompt_ids(index) | self._ids(pieces)


class ChatAnswer(_OpenAIAnswer):
    """The answer to `POST /v1/chat/completions`."""

    def __init__(self, call: GenerateCall[ChatFields], generation: Generation) -> None:
        kind = "chat.completion"
        super().__init__(call, generation, prefix="chatcmpl", kind=kind, event_kind=f"{kind}.chunk")
        self._readers = [ReplyReader(choice.parser) for choice in generation.choices]
        self._shows_tokens = self._returns_ids or self._has_continuous_usage or call.fields.logprobs

    def opening(self, index: int) -> list[dict[str, Any]]:
        delta = {"role": "assistant", "content": ""}
        choice = {"index": index, "delta": delta, "logprobs": None, "finish_reason": None}
        return [self._event(choice) | (self._prompt_ids(index) if index == 0 else {})]

    def chunks(self, arrived: Sequence[tuple[int, Piece]]) -> Iterator[dict[str, Any]]:
        chunks = zip(arrived, super().chunks(arrived), strict=True)
        # A token may be a part of a marker, which brings nothing by itself.
        return (chunk for (_, piece), chunk in chunks if self._brings(chunk["choices"][0]["delta"], piece))

    def _brings(self, delta: dict[str, Any], piece: Piece) -> bool:
        return bool(delta) or piece.finish_reason is not None or self._shows_tokens

    def chunk(self, index: int, piece: Piece) -> dict[str, Any]:
        logprobs = chat_logprobs(self._tokenizer, [piece])
        reader = self._readers[index]
        delta = {"content": piece.text} if reader.is_plain else delta_of(reader.push(piece))
        reason = reader.finish_reason(piece.finish_reason)
        choice = {"index": index, "delta": delta, "logprobs": logprobs, "finish_reason": reason}
        return self._event(choice | self._ids([piece]) if self._returns_ids else choice)

    def closing(self, usage: Usage) -> list[dict[str, Any]]:
        return super().closing(self._counted(usage))

    def _counted(self, usage: Usage) -> Usage:
        return replace(usage, reasoning_tokens=sum(reader.reasoning_tokens for reader in self._readers))

    def whole(self, choices: Sequence[Sequence[Piece]], usage: Usage) -> dict[str, Any]:
        replies = [reader.read(pieces) for reader, pieces in zip(self._readers, choices, strict=True)]
        answers = (self._choice(index, pieces, replies[index]) for index, pieces in enumerate(choices))
        answer = self._head | {"choices": json_list(answers, len(choices))}
        if (in_prompt := self._generation.prompt_logprobs(0)) is not None:
            answer["prompt_logprobs"] = prompt_logprobs(self._tokenizer, in_prompt)
        return answer | {"usage": self._counted(usage).as_json()} | self._prompt_ids(0)

    def _choice(self, index: int, pieces: Sequence[Piece], reply: Reply) -> dict[str, Any]:
        return {
            "index": index,
            "message": message_of(reply),
            "logprobs": chat_logprobs(self._tokenizer, pieces),
            "finish_reason": self._readers[index].finish_reason(pieces[-1].finish_reason),
        } | self._ids(pieces)


async def whole(generation: Generation, answer: Answer) -> Any:
    """Return the answer of a call as one object.

    Raises:
        ApiError: as `Generation.pieces`.
    """
    pieces: list[list[Piece]] = [[] for _ in generation.choices]
    with generation:
        await generation.submit()
        async for arrived in generation.pieces():
            for index, piece in arrived:
                pieces[index].append(piece)
        return answer.whole(pieces, generation.usage())


async def events(
    generation: Generation, answer: Answer, turns: Turns, heartbeats: Heartbeats
) -> AsyncGenerator[bytes, None]:
    """Yield the answer of a call as a stream. Tokens that arrived together are sent together.

    Nothing comes before the first token or the first heartbeat, so a call that fails until then can be answered with an
    error's status. A later failure is an event with an `error`, and no `[DONE]` follows it.

    Raises:
        ApiError: as `Generation.pieces`, before the first event.
    """
    is_open = has_begun = False
    framing = answer.framing
    every = PROGRESS_SECONDS if generation.shows_progress else SILENT_SECONDS
    try:
        with generation, heartbeats.watch(generation.wake, every) as silence:
            await generation.submit()
            async for arrived in generation.pieces():
                if not arrived and not silence.is_due:
                    continue  # woken again for a heartbeat while one was made
                data, is_last = b"", True
                if arrived:
                    openings = [] if is_open else map(answer.opening, range(len(generation.choices)))
                    contents = itertools.chain(itertools.chain.from_iterable(openings), answer.chunks(arrived))
                    made = pieces(framing.frames(contents))
                    data, is_last = next(made)
                if not data and silence.is_due:
                    progress = await generation.progress() if generation.shows_progress and not is_open else None
                    data = framing.heartbeat(answer.waiting(progress))
                elif data:
                    is_open, silence.every = True, SILENT_SECONDS
                if data:
                    has_begun = True
                    heartbeats.sent(silence)
                    yield data
                if not is_last:
                    async for data in in_turns(turns, made):
                        yield data
            yield b"".join(framing.frames(answer.closing(generation.usage()))) + framing.done
    except ApiError as error:
        if not has_begun:
            raise
        yield b"".join(framing.frames(framing.failure(error)))


class Streamed(StreamingResponse):
    """A response in pieces. Their generator is closed as soon as the client leaves, even if no piece comes.

    Args:
        first: the bytes that have been generated already.
    """

    def __init__(self, first: bytes, rest: AsyncGenerator[bytes, None], media_type: str, **headers: str) -> None:
        super().__init__(rest, media_type=media_type, headers=headers)
        self._first = first
        self._rest = rest

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await unless_disconnected(receive, self.stream_response(send))

    async def stream_response(self, send: Send) -> None:
        async with aclosing(self._rest):
            await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
            await send({"type": "http.response.body", "body": self._first, "more_body": True})
            async for data in self._rest:
                await send({"type": "http.response.body", "body": data, "more_body": True})
            await send({"type": "http.response.body", "body": b"", "more_body": False})


async def event_stream(generation: Generation, answer: Answer, turns: Turns, heartbeats: Heartbeats) -> Response:
    """Return a stream of events, once the first of them is there, or a heartbeat in its place.

    Raises:
        ApiError: as `Generation.pieces`, before that.
    """
    rest = events(generation, answer, turns, heartbeats)
    # The status is sent with the first bytes, so a call that fails before them is answered as an error.
    first = await anext(rest)
    headers = {"cache-control": "no-cache", "x-accel-buffering": "no"}
    return Streamed(first, rest, answer.framing.media_type, **headers)


async def json_response(content: Any, turns: Turns) -> Response:
    """Return a response of JSON. A long one is made while it is sent."""
    made = pieces(fragments(content))
    first, is_last = next(made)
    if is_last:
        return Response(first, media_type="application/json")
    return Streamed(first, in_turns(turns, made), "application/json")


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

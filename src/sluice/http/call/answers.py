"""Answers as one object, or as a stream of events, whichever form their route gives them."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncGenerator, Awaitable, Iterable, Iterator, Sequence
from contextlib import aclosing
from typing import Any, Protocol, TypeVar

import msgspec
from starlette.responses import Response, StreamingResponse
from starlette.types import Receive, Scope, Send

from sluice.http.base.errors import ApiError
from sluice.http.base.framing import Framing
from sluice.http.base.heartbeats import PROGRESS_SECONDS, SILENT_SECONDS, Heartbeats
from sluice.http.base.progress import Progress
from sluice.http.base.turns import Turns, fragments, in_turns, pieces
from sluice.http.call.event_ids import EventIds
from sluice.http.call.generation import Generation, Usage
from sluice.text.text_stream import Piece
from sluice.types import FinishReason

T = TypeVar("T")


class WholeAnswer(Protocol):
    """How one route spells an answer in one piece."""

    def whole(self, choices: Sequence[Sequence[Piece]], usage: Usage) -> Any:
        """Return the answer, from all pieces of each choice."""
        ...


class Answer(WholeAnswer, Protocol):
    """How one route spells its answer, which may be streamed."""

    @property
    def framing(self) -> Framing:
        """How its streams are framed."""
        ...

    def opening(self, index: int) -> Iterable[msgspec.Struct]:
        """Yield what comes before the first token of a choice, in a stream."""
        ...

    def chunks(self, arrived: Sequence[tuple[int, Piece]]) -> Iterable[msgspec.Struct]:
        """Yield the events of a stream for pieces that arrived together, each with the index of its choice."""
        ...

    def waiting(self, progress: Progress | None) -> Iterable[msgspec.Struct]:
        """Yield the events that say that the answer continues while no token comes; none if a comment is enough.

        Args:
            progress: of the prompts, if the call asks for it and none is read.
        """
        ...

    def closing(self, usage: Usage) -> Iterable[msgspec.Struct]:
        """Yield what comes after the last token of all choices, in a stream."""
        ...


def text_of(pieces: Sequence[Piece]) -> str:
    return "".join(piece.text for piece in pieces)


def end_of(pieces: Sequence[Piece]) -> FinishReason:
    """Return why an answer ended, from all its pieces."""
    reason = pieces[-1].finish_reason
    assert reason is not None, "the answer has not ended"
    return reason


async def whole(generation: Generation, answer: WholeAnswer) -> Any:
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
    framing, ids = answer.framing, generation.event_ids()
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
                    made = pieces(_frames(answer, itertools.chain.from_iterable(openings), arrived, ids))
                    data, is_last = next(made)
                    is_open = True
                if not data and silence.is_due:
                    progress = await generation.progress() if generation.shows_progress and not is_open else None
                    data = framing.heartbeat(answer.waiting(progress))
                elif data:
                    silence.every = SILENT_SECONDS
                if data:
                    has_begun = True
                    heartbeats.sent(silence)
                    yield data
                if not is_last:
                    async for data in in_turns(turns, made):
                        yield data
            if ids is None:
                yield b"".join(framing.frames(answer.closing(generation.usage()))) + framing.done
            else:
                last = b"".join(ids.frames(framing, answer.closing(generation.usage())))
                ids.ended()
                yield last + framing.done
    except ApiError as error:
        if not has_begun:
            raise
        yield b"".join(framing.frames(framing.failure(error)))


def _frames(
    answer: Answer,
    openings: Iterable[msgspec.Struct],
    arrived: Sequence[tuple[int, Piece]],
    ids: EventIds | None,
) -> Iterator[bytes]:
    """Yield the frames of what comes before the first token and of what arrived, with their ids if they have some.

    Raises:
        ApiError: as `EventIds`.
    """
    if ids is None:
        yield from answer.framing.frames(itertools.chain(openings, answer.chunks(arrived)))
        return
    yield from ids.frames(answer.framing, openings)
    for each in arrived:
        ids.took([each[1]])
        yield from ids.frames(answer.framing, answer.chunks([each]))


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

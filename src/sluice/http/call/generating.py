"""Runs the calls of all routes that generate or embed, whichever API they belong to."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Protocol

from starlette.requests import Request
from starlette.responses import Response

from sluice.http.base.auth import SENT_KEY, client_of
from sluice.http.base.backend import Backend
from sluice.http.base.body import BodyReader
from sluice.http.base.errors import CLIENT_LEFT
from sluice.http.base.heartbeats import Heartbeats
from sluice.http.base.isolation import CacheIsolation
from sluice.http.base.tokenizer_threads import TokenizerThreads
from sluice.http.base.turns import Turns
from sluice.http.call.answers import Answer, event_stream, json_response, unless_disconnected, whole
from sluice.http.call.constraint_fields import constrained
from sluice.http.call.embeddings import E, EmbedAnswer, embedded
from sluice.http.call.generate_call import G, GenerateCall
from sluice.http.call.generation import Generation, shaped
from sluice.http.call.tokenize import prompt_ids
from sluice.http.call.tools import check_readable
from sluice.text.constraints.checker import ConstraintChecker


class Generate(Protocol):
    """Checks a call, runs it for as long as its client is there, and answers it."""

    async def __call__(
        self,
        request: Request,
        parse: Callable[[bytes], GenerateCall[G]],
        make_answer: Callable[[GenerateCall[G], Generation], Answer],
        *,
        marker: bytes | None = None,
    ) -> Response:
        """Answer a request.

        Args:
            marker: as in `BodyReader.read`.
        """
        ...


class Embed(Protocol):
    """Checks a call, embeds its prompts for as long as its client is there, and answers it."""

    async def __call__(
        self,
        request: Request,
        parse: Callable[[bytes], GenerateCall[E]],
        make_answer: Callable[[GenerateCall[E], Generation], EmbedAnswer],
    ) -> Response: ...


def make_generate(
    backend: Backend,
    bodies: BodyReader,
    threads: TokenizerThreads,
    isolation: CacheIsolation,
    turns: Turns,
    checker: ConstraintChecker,
    clock: Callable[[], float],
    heartbeats: Heartbeats,
) -> Generate:
    """Return what all routes generate with. The arguments are those of `create_app`."""

    async def generate(
        request: Request,
        parse: Callable[[bytes], GenerateCall[G]],
        make_answer: Callable[[GenerateCall[G], Generation], Answer],
        *,
        marker: bytes | None = None,
    ) -> Response:
        call = (await bodies.read(request, parse, marker=marker)).isolated(isolation, request.scope.get(SENT_KEY, b""))
        service = backend.service(for_new=True)
        service.check_model(call.model)
        call = call.with_defaults(service.sampling_defaults)
        check_readable(call.tools, service.replies)
        came_at = service.client.now()

        async def begun() -> Response:
            prompts = await prompt_ids(service, threads, call)
            made = await constrained(checker, shaped(service, call, prompts), client_of(request.scope))
            bodies.check_ignored()
            generation = Generation(service, made, turns, came_at=came_at, created=int(clock()))
            await generation.prepare(prompts)
            answer = make_answer(made, generation)
            if call.fields.stream:
                return await event_stream(generation, answer, turns, heartbeats)
            return await json_response(await whole(generation, answer), turns)

        return await while_client_is_there(request, begun())

    return generate


def make_embed(
    backend: Backend,
    bodies: BodyReader,
    threads: TokenizerThreads,
    isolation: CacheIsolation,
    turns: Turns,
    clock: Callable[[], float],
) -> Embed:
    """Return what all routes embed with. The arguments are those of `create_app`."""

    async def embed(
        request: Request,
        parse: Callable[[bytes], GenerateCall[E]],
        make_answer: Callable[[GenerateCall[E], Generation], EmbedAnswer],
    ) -> Response:
        call = (await bodies.read(request, parse)).isolated(isolation, request.scope.get(SENT_KEY, b""))
        service = backend.service(for_new=True)
        service.check_model(call.model)
        came_at = service.client.now()

        async def begun() -> Response:
            prompts = await prompt_ids(service, threads, call)
            generation = Generation(service, call, turns, came_at=came_at, created=int(clock()))
            await generation.prepare(prompts)
            answer = make_answer(call, generation)
            return await json_response(await embedded(generation, answer), turns)

        return await while_client_is_there(request, begun())

    return embed


async def while_client_is_there(request: Request, work: Awaitable[Response]) -> Response:
    """Return the response that `work` makes, unless the client leaves before: then the work is cancelled."""
    response = await unless_disconnected(request.receive, work)
    return Response(status_code=CLIENT_LEFT) if response is None else response

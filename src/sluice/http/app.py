"""The HTTP application: its middleware, and the routes that generate and tokenize."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Collection, Sequence
from typing import TypeVar

from fastapi import FastAPI, Request
from fastapi.responses import Response

from sluice.http.answers import (
    Answer,
    ChatAnswer,
    CompletionAnswer,
    event_stream,
    json_response,
    unless_disconnected,
    whole,
)
from sluice.http.auth import SENT_KEY, KeyRequired
from sluice.http.backend import Backend
from sluice.http.body import BodyLimits, BodyReader
from sluice.http.calls import Calls, Listener
from sluice.http.connections import RefuseExtra
from sluice.http.errors import CLIENT_LEFT, add_error_handlers, bad_request
from sluice.http.generate_call import F, GenerateCall
from sluice.http.generation import Generation
from sluice.http.hosts import HostChecked
from sluice.http.info import add_health, add_info
from sluice.http.isolation import CacheIsolation
from sluice.http.metrics import Metrics, add_metrics
from sluice.http.openai import parse_chat, parse_completion
from sluice.http.sglang import NativeAnswer, parse_generate
from sluice.http.tokenize import detokenize, parse_detokenize, parse_tokenize, prompt_ids, tokenize
from sluice.http.tokenizer_threads import TokenizerThreads
from sluice.http.turns import BegunInTurns, Turns

T = TypeVar("T")


def create_app(
    backend: Backend,
    *,
    body_limits: BodyLimits | None = None,
    strict_fields: bool = False,
    api_keys: Collection[str] = (),
    hosts: Collection[str] | None = None,
    isolation: CacheIsolation | None = None,
    clock: Callable[[], float] = time.time,
    metrics: Metrics | None = None,
    listeners: Sequence[Listener] = (),
) -> FastAPI:
    """Return the HTTP application over a backend that may open and close at any time.

    Args:
        body_limits: of every request.
        strict_fields: unknown fields are refused.
        api_keys: every request must carry one of them; without any, none needs a key.
        hosts: names that it answers to, besides localhost and IP addresses. None: any.
        isolation: of cached prefixes; None: requests share them unless they send a salt.
        clock: Unix seconds.
        metrics: what /metrics shows, watching the engine's client. None counts HTTP calls alone.
        listeners: receive every call when it is over, besides the metrics.
    """
    metrics = Metrics() if metrics is None else metrics
    app = FastAPI(title="Sluice", docs_url=None, redoc_url=None, openapi_url=None)
    bodies = BodyReader(body_limits or BodyLimits(), strict_fields=strict_fields)
    _add_routes(app, backend, bodies, isolation or CacheIsolation(), clock)
    add_info(app, backend, int(clock()))
    add_metrics(app, backend, metrics)
    add_health(app, backend)
    add_error_handlers(app)
    if api_keys:
        app.add_middleware(KeyRequired, keys=api_keys)
    if hosts is not None:
        app.add_middleware(HostChecked, names=hosts)
    app.add_middleware(RefuseExtra)
    app.add_middleware(BegunInTurns)
    app.add_middleware(Calls, listeners=(metrics, bodies, *listeners))
    return app


def _add_routes(
    app: FastAPI, backend: Backend, bodies: BodyReader, isolation: CacheIsolation, clock: Callable[[], float]
) -> None:
    threads, turns = TokenizerThreads(), Turns()

    async def generate(
        request: Request,
        parse: Callable[[bytes], GenerateCall[F]],
        make_answer: Callable[[GenerateCall[F], Generation], Answer],
    ) -> Response:
        """Check a call, run it for as long as its client is there, and answer it."""
        call = (await bodies.read(request, parse)).isolated(isolation, request.scope.get(SENT_KEY, b""))
        service = backend.service(for_new=True)
        service.check_model(call.model)
        call = call.with_defaults(service.sampling_defaults)
        came_at = service.client.now()

        async def begun() -> Response:
            prompts = await prompt_ids(service, threads, call)
            generation = Generation(service, call, turns, came_at=came_at, created=int(clock()))
            await generation.prepare(prompts)
            answer = make_answer(call, generation)
            if call.fields.stream:
                return await event_stream(generation, answer, turns)
            return await json_response(await whole(generation, answer), turns)

        return await while_client_is_there(request, begun())

    @app.post("/v1/completions")
    async def completions(request: Request) -> Response:
        return await generate(request, parse_completion, CompletionAnswer)

    @app.post("/v1/chat/completions")
    async def chat_completions(request: Request) -> Response:
        return await generate(request, parse_chat, ChatAnswer)

    @app.post("/generate")
    async def native_generate(request: Request) -> Response:
        return await generate(request, parse_generate, NativeAnswer)

    @app.post("/v1/embeddings")
    async def embeddings(request: Request) -> Response:
        raise bad_request(
            "embeddings are not supported: this server only generates text",
            code="unsupported",
        )

    @app.post("/tokenize")
    async def to_tokens(request: Request) -> Response:
        call = await bodies.read(request, parse_tokenize)
        return await while_client_is_there(request, in_json(tokenize(backend.service(), threads, call)))

    @app.post("/detokenize")
    async def to_text(request: Request) -> Response:
        fields = await bodies.read(request, parse_detokenize)
        return await while_client_is_there(request, in_json(detokenize(backend.service(), threads, fields)))


async def while_client_is_there(request: Request, work: Awaitable[Response]) -> Response:
    """Return the response that `work` makes, unless the client leaves before: then the work is cancelled."""
    response = await unless_disconnected(request.receive, work)
    return Response(status_code=CLIENT_LEFT) if response is None else response


async def in_json(content: Awaitable[bytes]) -> Response:
    """Return a response of JSON that is encoded already."""
    return Response(await content, media_type="application/json")

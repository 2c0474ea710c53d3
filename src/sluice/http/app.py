"""The HTTP application: its middleware, and the routes that generate and tokenize."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Sequence
from functools import partial
from typing import TypeVar

from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse, Response

from sluice.http.answers import (
    Answer,
    ChatAnswer,
    CompletionAnswer,
    EventStream,
    events,
    unless_disconnected,
    whole,
)
from sluice.http.auth import KeyRequired
from sluice.http.backend import Backend
from sluice.http.body import BodyLimits, parsed, read_body
from sluice.http.calls import Calls, Listener
from sluice.http.errors import CLIENT_LEFT, add_error_handlers, bad_request
from sluice.http.generate_call import F, GenerateCall
from sluice.http.generation import Generation
from sluice.http.info import add_health, add_info
from sluice.http.metrics import Metrics, add_metrics
from sluice.http.openai import parse_chat, parse_completion
from sluice.http.sglang import NativeAnswer, parse_generate
from sluice.http.tokenize import detokenize, parse_tokenize, prompt_ids, tokenize

T = TypeVar("T")


def create_app(
    backend: Backend,
    *,
    body_limits: BodyLimits | None = None,
    api_keys: Collection[str] = (),
    clock: Callable[[], float] = time.time,
    metrics: Metrics | None = None,
    listeners: Sequence[Listener] = (),
) -> FastAPI:
    """Return the HTTP application over a backend that may open and close at any time.

    Args:
        body_limits: of every request.
        api_keys: every request must carry one of them; without any, none needs a key.
        clock: Unix seconds.
        metrics: what /metrics shows, watching the engine's client. None counts HTTP calls alone.
        listeners: receive every call when it is over, besides the metrics.
    """
    metrics = Metrics() if metrics is None else metrics
    app = FastAPI(title="Sluice", docs_url=None, redoc_url=None, openapi_url=None)
    _add_routes(app, backend, body_limits or BodyLimits(), clock)
    add_info(app, backend, int(clock()))
    add_metrics(app, backend, metrics)
    add_health(app, backend)
    add_error_handlers(app)
    if api_keys:
        app.add_middleware(KeyRequired, keys=api_keys)
    app.add_middleware(Calls, listeners=(metrics, *listeners))
    return app


def _add_routes(app: FastAPI, backend: Backend, limits: BodyLimits, clock: Callable[[], float]) -> None:
    async def read(request: Request, parse: Callable[[bytes], T]) -> T:
        return await parsed(parse, await read_body(request, limits))

    async def generate(
        request: Request,
        parse: Callable[[bytes], GenerateCall[F]],
        make_answer: Callable[[GenerateCall[F], Generation], Answer],
    ) -> Response:
        """Check a call, run it for as long as its client is there, and answer it."""
        call = await read(request, parse)
        service = backend.service(for_new=True)
        service.check_model(call.model)
        came_at = service.client.now()
        prompts = await prompt_ids(service, call)
        generation = Generation(service, prompts, call, came_at=came_at, created=int(clock()))
        answer = make_answer(call, generation)
        if not call.fields.stream:
            result = await unless_disconnected(request.receive, whole(generation, answer))
            return Response(status_code=CLIENT_LEFT) if result is None else JSONResponse(result)
        stream = events(generation, answer, continuous_usage=call.continuous_usage)
        # The status is sent with the first event, so a call that fails before it is answered as an error.
        first = await unless_disconnected(request.receive, anext(stream))
        return Response(status_code=CLIENT_LEFT) if first is None else EventStream(first, stream)

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
        fields = await read(request, parse_tokenize)
        return JSONResponse(await tokenize(backend.service(), fields))

    @app.post("/detokenize")
    async def to_text(request: Request) -> Response:
        return JSONResponse(await read(request, partial(detokenize, backend.service())))

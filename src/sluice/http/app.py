"""The routes, each a few lines over what is asked (`openai`, `native`, `tokenizing`), `generation` and `answers`."""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Collection, Sequence
from functools import partial
from importlib.metadata import version

from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse, Response
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect

from sluice.http.answers import Answer, ChatAnswer, CompletionAnswer, Head, events, whole
from sluice.http.auth import KeyRequired
from sluice.http.backend import Backend, Service
from sluice.http.body import BodyLimits, parsed, read_body
from sluice.http.calls import Calls, Listener
from sluice.http.errors import ApiError, bad_request
from sluice.http.failures import Failures
from sluice.http.generate_call import CompletionCall, GenerateCall
from sluice.http.generation import Generation, chat_prompt, completion_prompts
from sluice.http.health import add_health
from sluice.http.info import flush_cache, model_info, server_info
from sluice.http.metrics import Metrics
from sluice.http.metrics_page import add_metrics
from sluice.http.openai import parse_chat, parse_completion
from sluice.http.openapi import openapi
from sluice.http.sglang import NativeAnswer, parse_generate
from sluice.http.sse import EventStream, unless_disconnected
from sluice.http.tokenizing import detokenize, parse_tokenize, tokenize

CLIENT_LEFT = 499
"""Nobody reads it; it marks the call in a log."""


def create_app(
    backend: Backend,
    *,
    body_limits: BodyLimits | None = None,
    api_keys: Collection[str] = (),
    clock: Callable[[], float] = time.time,
    metrics: Metrics | None = None,
    listeners: Sequence[Listener] = (),
) -> FastAPI:
    """The HTTP application over a backend that may open and close at any time.

    Args:
        body_limits: of every request.
        api_keys: one of them must come with every request; without any, none need.
        clock: Unix seconds.
        metrics: those that the engine's client is watched by, served at /metrics. None counts HTTP calls alone.
        listeners: are told of every call, besides.
    """
    metrics = Metrics() if metrics is None else metrics
    limits = body_limits or BodyLimits()
    app = FastAPI(title="Sluice", docs_url=None, redoc_url=None, openapi_url=None)
    _add_generating(app, backend, limits, clock)
    _add_tokenizing(app, backend, limits)
    _add_describing(app, backend, int(clock()))
    add_metrics(app, backend, metrics)
    add_health(app, backend)
    _answer_errors(app)
    if api_keys:
        app.add_middleware(KeyRequired, keys=api_keys)
    app.add_middleware(Failures)
    app.add_middleware(Calls, listeners=(metrics, *listeners))
    return app


def _add_generating(app: FastAPI, backend: Backend, limits: BodyLimits, clock: Callable[[], float]) -> None:
    def head_of(service: Service) -> Head:
        return Head(secrets.token_hex(12), int(clock()), service)

    @app.post("/v1/completions")
    async def completions(request: Request) -> Response:
        call = await parsed(parse_completion, await read_body(request, limits))
        service = service_for(backend, call)
        came_at = service.client.now()
        prompts = await completion_prompts(service, call)
        generation = Generation(service, prompts, call, came_at=came_at, is_empty=call.is_empty)
        answer = CompletionAnswer(
            head_of(service),
            echo=_echo(service, call, prompts),
            tells_prompt_logprobs=call.tells_prompt_logprobs,
            include_usage=call.include_usage,
        )
        return await respond(request, call, generation, answer)

    @app.post("/v1/chat/completions")
    async def chat_completions(request: Request) -> Response:
        call = await parsed(parse_chat, await read_body(request, limits))
        service = service_for(backend, call)
        came_at = service.client.now()
        generation = Generation(service, [await chat_prompt(service, call)], call, came_at=came_at)
        answer = ChatAnswer(head_of(service), include_usage=call.include_usage)
        return await respond(request, call, generation, answer)

    @app.post("/generate")
    async def generate(request: Request) -> Response:
        call = await parsed(parse_generate, await read_body(request, limits))
        service = service_for(backend, call)
        came_at = service.client.now()
        generation = Generation(service, await completion_prompts(service, call), call, came_at=came_at)
        return await respond(request, call, generation, NativeAnswer(head_of(service), call, generation, came_at))

    @app.post("/v1/embeddings")
    async def embeddings(request: Request) -> Response:
        raise bad_request(
            "this server generates text and gives no embeddings: the models it serves are made for the next token",
            code="unsupported",
        )


def _add_tokenizing(app: FastAPI, backend: Backend, limits: BodyLimits) -> None:
    @app.post("/tokenize")
    async def to_tokens(request: Request) -> Response:
        fields = await parsed(parse_tokenize, await read_body(request, limits))
        return JSONResponse(await tokenize(backend.service(), fields))

    @app.post("/detokenize")
    async def to_text(request: Request) -> Response:
        text = partial(detokenize, backend.service())
        return JSONResponse(await parsed(text, await read_body(request, limits)))


def _add_describing(app: FastAPI, backend: Backend, started: int) -> None:
    @app.get("/v1/models")
    async def models() -> Response:
        return JSONResponse({"object": "list", "data": [describe_model(backend.service(), started)]})

    @app.get("/v1/models/{name:path}")
    async def model(name: str) -> Response:
        service = backend.service()
        service.check_model(name)
        return JSONResponse(describe_model(service, started))

    @app.get("/server_info")
    @app.get("/get_server_info")
    async def info() -> Response:
        return JSONResponse(await server_info(backend.service(), backend.engine))

    @app.get("/model_info")
    @app.get("/get_model_info")
    async def about_model() -> Response:
        return JSONResponse(model_info(backend.service()))

    @app.api_route("/flush_cache", methods=["GET", "POST"])
    async def flush() -> Response:
        return JSONResponse(await flush_cache(backend.service()))

    @app.get("/version")
    async def show_version() -> Response:
        return JSONResponse({"version": version("sluice")})

    @app.get("/openapi.json")
    async def schema() -> Response:
        return JSONResponse(openapi(version("sluice")))


def describe_model(service: Service, started: int) -> dict[str, object]:
    """A model as OpenAI lists it; `max_model_len` is vLLM's addition, here the most tokens of one request."""
    return {
        "id": service.model,
        "object": "model",
        "created": started,
        "owned_by": "sluice",
        "max_model_len": service.limits.max_request_tokens,
    }


def service_for(backend: Backend, call: GenerateCall) -> Service:
    """
    Raises:
        ApiError: 503, no model is loaded; 404, it is another one.
    """
    backend.check_admits()
    service = backend.service()
    service.check_model(call.model)
    return service


def _echo(service: Service, call: CompletionCall, prompts: Sequence[Sequence[int]]) -> list[str]:
    """The prompt of each choice as the caller wrote it, or, of token ids, as they read; nothing if it is not wanted."""
    if not call.echo:
        return []
    texts = [
        asked if isinstance(asked, str) else service.tokenizer.decode(prompt)
        for asked, prompt in zip(call.prompts, prompts, strict=True)
    ]
    return [text for text in texts for _ in range(call.sampling.n)]


async def respond(request: Request, call: GenerateCall, generation: Generation, answer: Answer) -> Response:
    """Run a call for as long as its client is there."""
    if call.stream:
        return EventStream(events(generation, answer, continuous_usage=call.continuous_usage))
    result = await unless_disconnected(request.receive, whole(generation, answer))
    return Response(status_code=CLIENT_LEFT) if result is None else JSONResponse(result)


def _answer_errors(app: FastAPI) -> None:
    """Every error in OpenAI's shape."""

    @app.exception_handler(ApiError)
    async def api_error(request: Request, error: ApiError) -> Response:
        return error.response()

    @app.exception_handler(ClientDisconnect)
    async def left(request: Request, error: ClientDisconnect) -> Response:
        return Response(status_code=CLIENT_LEFT)

    @app.exception_handler(HTTPException)
    async def http_error(request: Request, error: HTTPException) -> Response:
        known = {404: "there is no such path", 405: "the path exists, but not for this method"}
        message = f"{request.method} {request.url.path}: {known.get(error.status_code, error.detail)}"
        response = ApiError(error.status_code, message).response()
        response.headers.update(error.headers or {})
        return response

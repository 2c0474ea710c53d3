"""The routes: thin, each a few lines over `openai` (what is asked), `generation` and `answers`."""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Sequence
from importlib.metadata import version

from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse, Response
from starlette.exceptions import HTTPException

from sluice.server.answers import Answer, ChatAnswer, CompletionAnswer, events, whole
from sluice.server.backend import Backend, Service
from sluice.server.errors import ApiError
from sluice.server.generation import Generation, chat_prompt, completion_prompts
from sluice.server.info import server_info
from sluice.server.openai import ChatCall, CompletionCall, parse_chat, parse_completion
from sluice.server.stream import EventStream, unless_disconnected

MAX_BODY_BYTES = 32 << 20
CLIENT_LEFT = 499
"""Nobody reads it; it marks the call in a log."""


def create_app(
    backend: Backend, *, max_body_bytes: int = MAX_BODY_BYTES, clock: Callable[[], float] = time.time
) -> FastAPI:
    """The HTTP application over a backend that may open and close at any time."""
    app = FastAPI(title="Sluice", docs_url=None, redoc_url=None, openapi_url=None)
    started = int(clock())

    @app.post("/v1/completions")
    async def completions(request: Request) -> Response:
        call = parse_completion(await read_body(request, max_body_bytes))
        service = service_for(backend, call)
        answer = CompletionAnswer(id=secrets.token_hex(12), created=int(clock()), service=service)
        return await respond(request, service, call, await completion_prompts(service, call), answer)

    @app.post("/v1/chat/completions")
    async def chat_completions(request: Request) -> Response:
        call = parse_chat(await read_body(request, max_body_bytes))
        service = service_for(backend, call)
        answer = ChatAnswer(id=secrets.token_hex(12), created=int(clock()), service=service)
        return await respond(request, service, call, [await chat_prompt(service, call)], answer)

    @app.get("/v1/models")
    async def models() -> Response:
        return JSONResponse({"object": "list", "data": [describe_model(backend.service(), started)]})

    @app.get("/v1/models/{name:path}")
    async def model(name: str) -> Response:
        service = backend.service()
        service.check_model(name)
        return JSONResponse(describe_model(service, started))

    @app.get("/health")
    async def health() -> Response:
        return JSONResponse({"status": backend.status}, status_code=200 if backend.is_open else 503)

    @app.get("/server_info")
    async def info() -> Response:
        return JSONResponse(await server_info(backend.service()))

    @app.get("/version")
    async def show_version() -> Response:
        return JSONResponse({"version": version("sluice")})

    _answer_errors(app)
    return app


def describe_model(service: Service, started: int) -> dict[str, object]:
    """A model as OpenAI lists it; `max_model_len` is vLLM's addition, here the most tokens of one request."""
    return {
        "id": service.model,
        "object": "model",
        "created": started,
        "owned_by": "sluice",
        "max_model_len": service.limits.max_request_tokens,
    }


def service_for(backend: Backend, call: CompletionCall | ChatCall) -> Service:
    """
    Raises:
        ApiError: 503, no model is loaded; 404, it is another one.
    """
    service = backend.service()
    service.check_model(call.model)
    return service


async def respond(
    request: Request,
    service: Service,
    call: CompletionCall | ChatCall,
    prompts: Sequence[Sequence[int]],
    answer: Answer,
) -> Response:
    """Run a call for as long as its client is there."""
    generation = Generation(service, prompts, call)
    if call.stream:
        return EventStream(events(generation, answer, include_usage=call.include_usage))
    result = await unless_disconnected(request.receive, whole(generation, answer))
    return Response(status_code=CLIENT_LEFT) if result is None else JSONResponse(result)


async def read_body(request: Request, limit: int) -> bytes:
    """
    Raises:
        ApiError: 413, more than `limit` bytes.
    """
    parts: list[bytes] = []
    size = 0
    async for part in request.stream():
        size += len(part)
        if size > limit:
            raise ApiError(413, f"the body is larger than {limit} bytes, the most that is accepted")
        parts.append(part)
    return b"".join(parts)


def _answer_errors(app: FastAPI) -> None:
    """Every error in OpenAI's shape."""

    @app.exception_handler(ApiError)
    async def api_error(request: Request, error: ApiError) -> Response:
        return error.response()

    @app.exception_handler(HTTPException)
    async def http_error(request: Request, error: HTTPException) -> Response:
        known = {404: "there is no such path", 405: "the path exists, but not for this method"}
        message = f"{request.method} {request.url.path}: {known.get(error.status_code, error.detail)}"
        response = ApiError(error.status_code, message).response()
        response.headers.update(error.headers or {})
        return response

    @app.exception_handler(Exception)
    async def bug(request: Request, error: Exception) -> Response:
        return ApiError(500, f"internal error: {type(error).__name__}").response()

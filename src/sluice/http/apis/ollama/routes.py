"""The routes of Ollama's API. They generate as those of other APIs do, with requests and answers of their own form."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from sluice.http.apis.ollama.answers import OllamaChat, OllamaChatAnswer, OllamaGenerateAnswer, OllamaGenerated
from sluice.http.apis.ollama.embed import (
    OLLAMA_EMBED_BODY,
    OLLAMA_EMBEDDING_BODY,
    OllamaEmbed,
    OllamaEmbedAnswer,
    OllamaEmbedding,
    OllamaEmbeddingAnswer,
    parse_ollama_embed,
    parse_ollama_embedding,
)
from sluice.http.apis.ollama.fields import (
    OLLAMA_CHAT_BODY,
    OLLAMA_GENERATE_BODY,
    parse_ollama_chat,
    parse_ollama_generate,
    served_name,
)
from sluice.http.apis.ollama.models import (
    PULL_BODY,
    SHOW_BODY,
    OllamaRunning,
    OllamaShown,
    OllamaTags,
    parse_pull,
    parse_show,
    running,
    show,
    tags,
)
from sluice.http.base.backend import Backend
from sluice.http.base.body import BodyReader
from sluice.http.base.errors import ApiError, OllamaError
from sluice.http.base.routes import NDJSON, Handler, Routes, json_answer
from sluice.http.call.generating import CallHandler

Add = partial[Callable[[Handler], Handler]]
"""`Routes.add`, with the form of Ollama's errors."""
API_VERSION = "0.13.5"
"""The version of Ollama whose API this is. Clients refuse to talk to versions that lack what they need."""
RESTART = "start the server with another model: sluice serve MODEL"
REFUSED = {
    "/api/push": "use the tools of the model's hub to upload a checkpoint",
    "/api/create": "a model is a checkpoint, and its chat template can be set by --chat-template; " + RESTART,
    "/api/copy": "give the model several names by --served-model-name a,b",
}
"""What to do instead of a POST that is not supported."""


class OllamaStatus(msgspec.Struct):
    """The answer to `POST /api/pull`, and an event of its stream."""

    status: str


class OllamaVersion(msgspec.Struct):
    """The answer to `GET /api/version`."""

    version: str


def add_ollama(routes: Routes, backend: Backend, bodies: BodyReader, calls: CallHandler, started: int) -> None:
    """Add the routes of Ollama's API.

    Args:
        started: when the server was, in Unix seconds.
    """
    add = partial(routes.add, error=OllamaError, unavailable=OllamaError)
    _add_generation(add, backend, calls)
    _add_embeddings(add, backend, calls)
    _add_models(add, backend, bodies, started)
    _add_pull(add, backend, bodies)

    @add("GET", "/api/version", summary="The version of Ollama whose API this is", answer=OllamaVersion)
    async def version(request: Request) -> Response:
        return json_answer(OllamaVersion(API_VERSION))

    for path, instead in REFUSED.items():
        add("POST", path, summary=f"Refused: {instead} (Ollama)")(_refusal(path, instead))
    add("DELETE", "/api/delete", summary=f"Refused: {RESTART} (Ollama)")(_refusal("/api/delete", RESTART))


def _add_generation(add: Add, backend: Backend, calls: CallHandler) -> None:
    @add(
        "POST",
        "/api/chat",
        summary="Continue a conversation (Ollama)",
        body=OLLAMA_CHAT_BODY,
        answer=OllamaChat,
        events=OllamaChat,
        events_type=NDJSON,
    )
    async def chat(request: Request) -> Response:
        return await calls.generate(
            request, partial(parse_ollama_chat, backend.service(for_new=True)), OllamaChatAnswer
        )

    @add(
        "POST",
        "/api/generate",
        summary="Answer a prompt (Ollama)",
        body=OLLAMA_GENERATE_BODY,
        answer=OllamaGenerated,
        events=OllamaGenerated,
        events_type=NDJSON,
    )
    async def ollama_generate(request: Request) -> Response:
        parse = partial(parse_ollama_generate, backend.service(for_new=True))
        return await calls.generate(request, parse, OllamaGenerateAnswer)


def _add_embeddings(add: Add, backend: Backend, calls: CallHandler) -> None:
    @add("POST", "/api/embed", summary="Embed texts (Ollama)", body=OLLAMA_EMBED_BODY, answer=OllamaEmbed)
    async def ollama_embed(request: Request) -> Response:
        parse = partial(parse_ollama_embed, backend.service(for_new=True))
        return await calls.embed(request, parse, OllamaEmbedAnswer)

    @add(
        "POST",
        "/api/embeddings",
        summary="Embed a text (Ollama, before /api/embed)",
        body=OLLAMA_EMBEDDING_BODY,
        answer=OllamaEmbedding,
    )
    async def ollama_embedding(request: Request) -> Response:
        parse = partial(parse_ollama_embedding, backend.service(for_new=True))
        return await calls.embed(request, parse, OllamaEmbeddingAnswer)


def _add_models(add: Add, backend: Backend, bodies: BodyReader, started: int) -> None:
    @add("GET", "/api/tags", summary="The model that is served, by each of its names (Ollama)", answer=OllamaTags)
    async def list_models(request: Request) -> Response:
        return json_answer(tags(backend.service(), started))

    @add("GET", "/api/ps", summary="The same, with its memory (Ollama)", answer=OllamaRunning)
    async def list_running(request: Request) -> Response:
        return json_answer(running(backend.service()))

    @add("POST", "/api/show", summary="What is known of the model (Ollama)", body=SHOW_BODY, answer=OllamaShown)
    async def show_model(request: Request) -> Response:
        name = await bodies.read(request, parse_show)
        return json_answer(show(backend.service(), name, started))


def _add_pull(add: Add, backend: Backend, bodies: BodyReader) -> None:
    @add(
        "POST",
        "/api/pull",
        summary="Says that the model which is served is there; refused for any other (Ollama)",
        body=PULL_BODY,
        answer=OllamaStatus,
        events=OllamaStatus,
        events_type=NDJSON,
    )
    async def pull(request: Request) -> Response:
        fields = await bodies.read(request, parse_pull)
        served_name(backend.service(), fields.model or fields.name or "")
        if not fields.stream:
            return json_answer(OllamaStatus("success"))
        lines = [OllamaStatus("pulling manifest"), OllamaStatus("success")]
        content = b"".join(msgspec.json.encode(line) + b"\n" for line in lines)
        return Response(content, media_type=NDJSON)


def _refusal(path: str, instead: str) -> Handler:
    async def refuse(request: Request) -> Response:
        raise ApiError(400, f"{path} is not supported: {instead}", code="unsupported")

    return refuse

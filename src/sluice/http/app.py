"""The HTTP application: its middleware, and the routes that generate and tokenize."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Collection, Sequence
from typing import TypeVar

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response

from sluice.http.apis.adapters import AdapterFolder, add_adapters
from sluice.http.apis.anthropic.routes import add_anthropic
from sluice.http.apis.infill import add_infill
from sluice.http.apis.ollama.routes import add_ollama
from sluice.http.apis.responses.routes import add_responses
from sluice.http.apis.responses.store import ResponseStore
from sluice.http.apis.scoring import add_scoring
from sluice.http.apis.sglang import GENERATE_BODY, Generated, NativeAnswer, parse_generate
from sluice.http.apis.tokens import add_token_calls
from sluice.http.base.auth import KeyRequired
from sluice.http.base.backend import Backend
from sluice.http.base.body import BodyLimits, BodyReader
from sluice.http.base.calls import Calls, Listener
from sluice.http.base.errors import ERROR_HANDLERS
from sluice.http.base.heartbeats import Heartbeats
from sluice.http.base.isolation import CacheIsolation
from sluice.http.base.origins import Origins
from sluice.http.base.routes import Routes
from sluice.http.base.tokenizer_threads import TokenizerThreads
from sluice.http.base.turns import BegunInTurns, Turns
from sluice.http.call.embeddings import EMBEDDING_BODY, EmbeddingAnswer, Embeddings, parse_embedding
from sluice.http.call.generating import CallHandler, while_client_is_there
from sluice.http.call.openai import CHAT_BODY, COMPLETION_BODY, parse_chat, parse_completion
from sluice.http.call.openai_answers import (
    ChatAnswer,
    ChatCompletion,
    ChatCompletionChunk,
    Completion,
    CompletionAnswer,
    CompletionChunk,
)
from sluice.http.call.tokenize import (
    DETOKENIZE_BODY,
    TOKENIZE_BODY,
    Detokenized,
    Tokenized,
    detokenize,
    parse_detokenize,
    parse_tokenize,
    tokenize,
)
from sluice.http.edge.connections import RefuseExtra
from sluice.http.edge.cross_site import CrossSiteChecked, with_cors
from sluice.http.edge.hosts import HostChecked
from sluice.http.observe.docs_page import add_docs_page
from sluice.http.observe.engine_metrics import Page, add_metrics
from sluice.http.observe.http_metrics import Metrics
from sluice.http.observe.info import add_description, add_health, add_info
from sluice.http.observe.sleep_routes import add_sleep
from sluice.http.observe.trace_feed import TraceFeed
from sluice.http.observe.trace_routes import add_trace
from sluice.http.observe.web_page import add_greeting, add_page
from sluice.process.sleep import Sleep
from sluice.text.constraints.checker import ConstraintChecker

T = TypeVar("T")


def create_app(
    backend: Backend,
    *,
    body_limits: BodyLimits | None = None,
    strict_fields: bool = False,
    api_keys: Collection[str] = (),
    admin_keys: Collection[str] = (),
    hosts: Collection[str] | None = None,
    origins: Origins | None = None,
    isolation: CacheIsolation | None = None,
    clock: Callable[[], float] = time.time,
    metrics: Metrics | None = None,
    listeners: Sequence[Listener] = (),
    sleep: Sleep | None = None,
    responses: ResponseStore | None = None,
    feed: TraceFeed | None = None,
    more_metrics: Callable[[Page], None] = lambda page: None,
    heartbeats: Heartbeats | None = None,
    adapters: AdapterFolder | None = None,
) -> Starlette:
    """Return the HTTP application over a backend that may open and close at any time.

    Args:
        body_limits: of every request.
        strict_fields: unknown fields are refused.
        api_keys: every request must carry one of them; without any, none needs a key.
        admin_keys: a request that puts the server to sleep, or loads adapters, must carry one of them.
        hosts: names that it answers to, besides localhost and IP addresses. None: any.
        origins: other sites whose pages may call it. None: no site.
        isolation: of cached prefixes; None: requests share them unless they send a salt.
        clock: Unix seconds.
        metrics: what /metrics shows, watching the engine's client. None counts HTTP calls alone.
        listeners: receive every call when it is over, besides the metrics.
        sleep: of the engine. None: there are no routes for it.
        responses: those that are stored. None: none is.
        feed: of `/v1/trace`, beside the page at `/`, which needs no key. None: there is neither.
        more_metrics: adds to /metrics what only some servers have.
        heartbeats: of streams. None: by the time that passes.
        adapters: may be loaded. None: there are no routes for it.
    """
    metrics = Metrics() if metrics is None else metrics
    bodies = BodyReader(body_limits or BodyLimits(), strict_fields=strict_fields)
    responses = ResponseStore(0, 0) if responses is None else responses
    routes = make_routes(
        backend, bodies, isolation or CacheIsolation(), metrics, clock, responses, heartbeats, feed, more_metrics
    )
    if sleep is not None:
        add_sleep(routes, backend, sleep)
    if adapters is not None:
        add_adapters(routes, backend, bodies, adapters)
    app = Starlette(routes=routes.starlette_routes(), exception_handlers=ERROR_HANDLERS)
    if api_keys or admin_keys:
        app.add_middleware(KeyRequired, keys=api_keys, admin_keys=admin_keys, has_page=feed is not None)
    _check_sites(app, hosts, origins or Origins())
    app.add_middleware(RefuseExtra)
    app.add_middleware(BegunInTurns)
    app.add_middleware(Calls, listeners=(metrics, bodies, *listeners), names_requests=feed is not None)
    return app


def _check_sites(app: Starlette, hosts: Collection[str] | None, origins: Origins) -> None:
    """Let an application refuse calls of other sites' pages, and to other names. The arguments are those of
    `create_app`."""
    app.add_middleware(CrossSiteChecked, names=hosts or (), origins=origins)
    if origins.patterns:
        app.add_middleware(with_cors, origins=origins)
    if hosts is not None:
        app.add_middleware(HostChecked, names=hosts)


def make_routes(
    backend: Backend,
    bodies: BodyReader,
    isolation: CacheIsolation,
    metrics: Metrics,
    clock: Callable[[], float],
    responses: ResponseStore,
    heartbeats: Heartbeats | None = None,
    feed: TraceFeed | None = None,
    more_metrics: Callable[[Page], None] = lambda page: None,
) -> Routes:
    """Return all routes. The arguments are those of `create_app`."""
    routes, threads = Routes(), TokenizerThreads()
    _add_generation(routes, backend, bodies, threads, isolation, clock, responses, heartbeats or Heartbeats())
    _add_tokenizing(routes, backend, bodies, threads)
    add_info(routes, backend, int(clock()))
    add_metrics(routes, backend, metrics, more=more_metrics)
    add_health(routes, backend)
    add_description(routes)
    add_docs_page(routes)
    if feed is None:
        add_greeting(routes)
    else:
        add_page(routes)
        add_trace(routes, backend, feed)
    return routes


def _add_generation(
    routes: Routes,
    backend: Backend,
    bodies: BodyReader,
    threads: TokenizerThreads,
    isolation: CacheIsolation,
    clock: Callable[[], float],
    responses: ResponseStore,
    heartbeats: Heartbeats,
) -> None:
    calls = CallHandler(backend, bodies, threads, isolation, Turns(), ConstraintChecker(), clock, heartbeats)
    add_responses(routes, calls, responses)
    add_anthropic(routes, backend, bodies, calls, threads)
    add_ollama(routes, backend, bodies, calls, int(clock()))
    _add_embeddings(routes, calls)
    add_scoring(routes, calls)
    add_token_calls(routes, calls)
    add_infill(routes, calls)

    @routes.add(
        "POST",
        "/v1/completions",
        summary="Continue prompts (OpenAI)",
        body=COMPLETION_BODY,
        answer=Completion,
        events=CompletionChunk,
    )
    async def completions(request: Request) -> Response:
        return await calls.generate(request, parse_completion, CompletionAnswer)

    @routes.add(
        "POST",
        "/v1/chat/completions",
        summary="Continue a conversation (OpenAI)",
        body=CHAT_BODY,
        answer=ChatCompletion,
        events=ChatCompletionChunk,
    )
    async def chat_completions(request: Request) -> Response:
        return await calls.generate(request, parse_chat, ChatAnswer)

    @routes.add(
        "POST",
        "/generate",
        summary="Continue prompts (SGLang)",
        body=GENERATE_BODY,
        answer=Generated | list[Generated],
        events=Generated,
    )
    async def native_generate(request: Request) -> Response:
        return await calls.generate(request, parse_generate, NativeAnswer)


def _add_tokenizing(routes: Routes, backend: Backend, bodies: BodyReader, threads: TokenizerThreads) -> None:
    @routes.add("POST", "/tokenize", summary="Text to token ids (vLLM)", body=TOKENIZE_BODY, answer=Tokenized)
    async def to_tokens(request: Request) -> Response:
        call = await bodies.read(request, parse_tokenize)
        return await while_client_is_there(request, in_json(tokenize(backend.service(), threads, call)))

    @routes.add("POST", "/detokenize", summary="Token ids to text (vLLM)", body=DETOKENIZE_BODY, answer=Detokenized)
    async def to_text(request: Request) -> Response:
        fields = await bodies.read(request, parse_detokenize)
        return await while_client_is_there(request, in_json(detokenize(backend.service(), threads, fields)))


def _add_embeddings(routes: Routes, calls: CallHandler) -> None:
    @routes.add("POST", "/v1/embeddings", summary="Embed texts (OpenAI)", body=EMBEDDING_BODY, answer=Embeddings)
    async def embeddings(request: Request) -> Response:
        return await calls.embed(request, parse_embedding, EmbeddingAnswer)


async def in_json(content: Awaitable[bytes]) -> Response:
    """Return a response of JSON that is encoded already."""
    return Response(await content, media_type="application/json")

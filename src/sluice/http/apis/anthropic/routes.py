"""The routes of Anthropic's API. They generate as those of other APIs do, with requests and answers of its form."""

from __future__ import annotations

from functools import partial

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from sluice.http.apis.anthropic.answers import AnthropicAnswer, MessageAnswer, MessageEvent
from sluice.http.apis.anthropic.fields import COUNT_BODY, MESSAGES_BODY, parse_count, parse_messages
from sluice.http.base.backend import Backend
from sluice.http.base.body import BodyReader
from sluice.http.base.errors import OVERLOADED, AnthropicError
from sluice.http.base.routes import Routes, json_answer
from sluice.http.base.tokenizer_threads import TokenizerThreads
from sluice.http.call.generating import CallHandler, while_client_is_there
from sluice.http.call.tokenize import count_tokens


class TokenCount(msgspec.Struct):
    """The answer to `POST /v1/messages/count_tokens`."""

    input_tokens: int


def add_anthropic(
    routes: Routes, backend: Backend, bodies: BodyReader, calls: CallHandler, threads: TokenizerThreads
) -> None:
    """Add the routes of Anthropic's API."""
    add = partial(routes.add, error=AnthropicError, unavailable=AnthropicError, overload_status=OVERLOADED)

    @add(
        "POST",
        "/v1/messages",
        summary="Continue a conversation (Anthropic)",
        body=MESSAGES_BODY,
        answer=MessageAnswer,
        events=MessageEvent,
        events_end=None,
    )
    async def messages(request: Request) -> Response:
        return await calls.generate(request, parse_messages, AnthropicAnswer)

    @add(
        "POST",
        "/v1/messages/count_tokens",
        summary="The tokens of a conversation (Anthropic)",
        body=COUNT_BODY,
        answer=TokenCount,
    )
    async def count(request: Request) -> Response:
        call = await bodies.read(request, parse_count)
        service = backend.service()
        service.check_model(call.model)

        async def counted() -> Response:
            return json_answer(TokenCount(await count_tokens(service, threads, call)))

        return await while_client_is_there(request, counted())

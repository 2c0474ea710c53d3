"""The routes of OpenAI's Responses API: a response is created, stored, looked up and deleted."""

from __future__ import annotations

from functools import partial

from starlette.requests import Request
from starlette.responses import Response

from sluice.http.apis.responses.answers import ResponseAnswer
from sluice.http.apis.responses.fields import RESPONSE_BODY, parse_response
from sluice.http.apis.responses.items import Item, listed
from sluice.http.apis.responses.store import ResponseStore, StoredResponse, owner_of
from sluice.http.apis.responses.types import DeletedResponse, InputItems, InputTokens, ResponseEvent, ResponseObject
from sluice.http.base.auth import SENT_KEY
from sluice.http.base.errors import bad_request, require
from sluice.http.base.routes import JSON, Routes, json_answer
from sluice.http.call.generating import CallHandler, while_client_is_there
from sluice.http.call.tokenize import count_tokens

CONTINUES = b'"previous_response_id"'
"""Occurs in bodies that may continue a long conversation."""
MOST_LISTED, LISTED = 100, 20
"""Most items of an answer that lists some, and those of one that is not asked for a number."""


def add_responses(routes: Routes, calls: CallHandler, store: ResponseStore) -> None:
    """Add the routes of the Responses API."""
    _add_making(routes, calls, store)
    _add_stored(routes, store)


def _add_making(routes: Routes, calls: CallHandler, store: ResponseStore) -> None:
    """Add the routes that take a conversation."""

    @routes.add(
        "POST",
        "/v1/responses",
        summary="Continue a conversation (OpenAI)",
        body=RESPONSE_BODY,
        answer=ResponseObject,
        events=ResponseEvent,
        events_end=None,
    )
    async def create(request: Request) -> Response:
        parse = partial(parse_response, store, _key_of(request))
        return await calls.generate(request, parse, partial(ResponseAnswer, store), marker=CONTINUES)

    @routes.add(
        "POST",
        "/v1/responses/input_tokens",
        summary="The tokens of a conversation (OpenAI)",
        body=RESPONSE_BODY,
        answer=InputTokens,
    )
    async def count(request: Request) -> Response:
        call = await calls.bodies.read(request, partial(parse_response, store, _key_of(request)), marker=CONTINUES)
        service = calls.backend.service()
        service.check_model(call.model)

        async def counted() -> Response:
            return json_answer(InputTokens("response.input_tokens", await count_tokens(service, calls.threads, call)))

        return await while_client_is_there(request, counted())


def _add_stored(routes: Routes, store: ResponseStore) -> None:
    """Add the routes of responses that were stored."""
    named = partial(routes.add, answer=ResponseObject)

    @named("GET", "/v1/responses/{response_id}", summary="A stored response (OpenAI)")
    async def retrieve(request: Request) -> Response:
        streams = request.query_params.get("stream", "false")
        message = f"stream {streams!r} is not supported: only responses in the background are streamed again"
        require(streams in ("false", "False", ""), message, param="stream")
        return Response(_stored(store, request).response, media_type=JSON)

    @routes.add("DELETE", "/v1/responses/{response_id}", summary="Forget a response (OpenAI)", answer=DeletedResponse)
    async def delete(request: Request) -> Response:
        id = request.path_params["response_id"]
        store.delete(id, _owner(request))
        return json_answer(DeletedResponse(id, "response.deleted", True))

    @named("POST", "/v1/responses/{response_id}/cancel", summary="Refused: responses are not made in the background")
    async def cancel(request: Request) -> Response:
        _stored(store, request)
        raise bad_request(
            "the response is over: only one that was created with background: true, which is not supported, could be"
            " cancelled. A response ends when its client leaves",
            code="unsupported",
        )

    @routes.add(
        "GET",
        "/v1/responses/{response_id}/input_items",
        summary="The conversation that a stored response answers (OpenAI)",
        answer=InputItems,
    )
    async def input_items(request: Request) -> Response:
        stored = _stored(store, request)
        return json_answer(_page(listed(stored.input_items(), request.path_params["response_id"]), request))


def _key_of(request: Request) -> bytes:
    key: bytes = request.scope.get(SENT_KEY, b"")
    return key


def _owner(request: Request) -> bytes:
    return owner_of(_key_of(request), request.query_params.get("cache_salt", ""))


def _stored(store: ResponseStore, request: Request) -> StoredResponse:
    return store.get(request.path_params["response_id"], _owner(request))


def _page(items: list[Item], request: Request) -> InputItems:
    """Return the items that a request asks for: so many, in an order, behind one."""
    query = request.query_params
    order = query.get("order", "desc")
    require(order in ("asc", "desc"), f"order must be asc or desc, got {order!r}", param="order")
    given = query.get("limit", str(LISTED))
    is_fine = given.isdecimal() and len(given) < 9 and 1 <= int(given) <= MOST_LISTED
    require(is_fine, f"limit must be an integer from 1 to {MOST_LISTED}, got {given!r}", param="limit")
    ids = [item["id"] for item in items]
    after = query.get("after")
    require(after is None or after in ids, f"after {after!r} is no item of this response", param="after")
    if order == "desc":
        items, ids = items[::-1], ids[::-1]
    start = 0 if after is None else ids.index(after) + 1
    data, shown = items[start : start + int(given)], ids[start : start + int(given)]
    first, last = (shown[0], shown[-1]) if shown else (None, None)
    return InputItems("list", data, first, last, start + len(data) < len(items))

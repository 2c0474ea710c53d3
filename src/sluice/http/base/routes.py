"""The table of routes: each path with its handler, what it takes and what it answers.

The application is routed by this table (`starlette_routes`), and `/openapi.json` is written from it (`openapi`).
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Literal

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from sluice.http.base.errors import Error

JSON = "application/json"
EVENT_STREAM, NDJSON = "text/event-stream", "application/x-ndjson"
Handler = Callable[[Request], Awaitable[Response]]
Method = Literal["GET", "POST", "DELETE"]
Fields = tuple[type[msgspec.Struct], ...]
"""Structs whose fields stand side by side in one JSON object."""


@dataclass(frozen=True, slots=True)
class Body:
    """What a request's JSON body holds.

    Args:
        fields: of the body.
        nested: the fields of an object in the body, by the name of the field that holds the object.
        either: fields of which exactly one is given.
        required: fields that must be given although their structs have a default.
    """

    fields: Fields
    nested: Mapping[str, Fields] = field(default_factory=lambda: MappingProxyType({}))
    either: tuple[str, ...] = ()
    required: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Operation:
    """One method of one path."""

    method: Method
    path: str
    """Path in Starlette's notation, such as `/v1/models/{name:path}`."""
    handler: Handler
    summary: str
    body: Body | None = None
    """None: the operation takes none."""
    answer: Any = None
    """Type of the answer with status 200, as `msgspec` describes it; `dict`: any object; None: text."""
    events: Any = None
    """Type of an event of the stream that the same request may be answered with. None: it never is."""
    events_type: str = EVENT_STREAM
    """Media type of that stream."""
    events_end: str | None = "[DONE]"
    """The data of its last server-sent event, if that is no JSON."""
    error: Any = Error
    """Type of answers that are refusals or failures."""
    unavailable: Any = Error
    """Type of the answer with status 503."""
    overload_status: int | None = None
    """Status of that answer if the server has too much to do. None: 503."""
    media_type: str = JSON
    is_documented: bool = True


def json_answer(content: Any, status_code: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    """Return a response of JSON.

    Args:
        content: a struct, or what else `msgspec` encodes.
    """
    return Response(msgspec.json.encode(content), status_code, headers, JSON)


class Routes:
    """The operations, in the order in which they were added."""

    def __init__(self) -> None:
        self.operations: list[Operation] = []

    def add(self, method: Method, *paths: str, summary: str, **described: Any) -> Callable[[Handler], Handler]:
        """Return a decorator that adds a handler.

        Args:
            paths: further ones are other names of the first.
            described: other fields of `Operation`.
        """

        def added(handler: Handler) -> Handler:
            self.operations += [
                Operation(method=method, path=path, handler=handler, summary=summary, **described) for path in paths
            ]
            return handler

        return added

    def starlette_routes(self) -> list[Route]:
        """Return the routes of a Starlette application. A path with GET has HEAD, too."""
        return [Route(each.path, each.handler, methods=[each.method]) for each in self.operations]

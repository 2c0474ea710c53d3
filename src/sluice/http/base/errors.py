"""Errors in the shape of OpenAI's API, or of another one on its paths, and how the application answers with them."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Mapping
from difflib import get_close_matches
from types import MappingProxyType
from typing import Any

import msgspec
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Route

from sluice.types.request_limits import NO_TIER
from sluice.types.shown import LONGEST_SHOWN, clipped

RETRY_SECONDS = 5
"""When to try again with a server that has no engine at the moment."""
LONGEST_MESSAGE = 2000
"""Characters. A message names the value that it refuses, which may be megabytes long."""
OLLAMA_PREFIX = "/api/"
"""What the paths of Ollama's API begin with."""
ANTHROPIC_PATHS = re.compile(r"/v1/messages(/.*)?")
"""The paths of Anthropic's API."""
OVERLOADED = 529
"""Anthropic's status for a server that has too much to do."""
OVERLOAD_CODES = frozenset({"overloaded", "queue_timeout", "too_many_connections"})
"""Codes of a 503 that is an `OVERLOADED` there."""
ANTHROPIC_TYPES: Mapping[int, str] = MappingProxyType(
    {
        401: "authentication_error",
        403: "permission_error",
        404: "not_found_error",
        408: "timeout_error",
        413: "request_too_large",
        OVERLOADED: "overloaded_error",
    }
)
"""Anthropic's names for statuses. Others below 500 are `invalid_request_error`, and the rest `api_error`."""
CLOSE = 0.9
"""How alike a path that is there has to be to one that is not, from 0 to 1, to be meant."""
CLIENT_LEFT = 499
"""The status in logs, metrics and traces of a call whose client left before the answer."""


class ErrorDetails(msgspec.Struct):
    message: str
    type: str
    param: str | None
    """The field at fault, as a path (`messages[0].role`)."""
    code: str | None


class Error(msgspec.Struct):
    """The body of answers other than 2xx, in the shape of OpenAI's API."""

    error: ErrorDetails


class OllamaError(msgspec.Struct):
    """The same in the shape of Ollama's API."""

    error: str


class AnthropicErrorDetails(msgspec.Struct):
    type: str
    message: str


class AnthropicError(msgspec.Struct, tag_field="type", tag="error"):
    """The same in the shape of Anthropic's API."""

    error: AnthropicErrorDetails


class ApiError(Exception):
    """An answer other than 2xx.

    Args:
        param: the field at fault, as a path ("messages[0].role").
        code: OpenAI's code where it has one.
        retry_after: seconds after which the same request may succeed.
    """

    def __init__(
        self,
        status: int,
        message: str,
        *,
        param: str | None = None,
        code: str | None = None,
        retry_after: int | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.message = clipped(message, LONGEST_MESSAGE)
        self.param = None if param is None else clipped(param)
        self.code = code
        self.retry_after = retry_after

    def body(self) -> Error:
        """Return the error in the shape of OpenAI's API."""
        kind = "invalid_request_error" if self.status < 500 else "server_error"
        return Error(ErrorDetails(self.message, kind, self.param, self.code))

    def ollama_body(self) -> OllamaError:
        """Return the error in the shape of Ollama's API."""
        return OllamaError(self.message)

    @property
    def anthropic_status(self) -> int:
        return OVERLOADED if self.status == 503 and self.code in OVERLOAD_CODES else self.status

    def anthropic_body(self) -> AnthropicError:
        """Return the error in the shape of Anthropic's API."""
        status = self.anthropic_status
        kind = ANTHROPIC_TYPES.get(status, "invalid_request_error" if status < 500 else "api_error")
        return AnthropicError(AnthropicErrorDetails(kind, self.message))

    def response(self, path: str) -> Response:
        """Return the answer to a request of a path."""
        headers = None if self.retry_after is None else {"Retry-After": str(self.retry_after)}
        status = self.status
        if ANTHROPIC_PATHS.fullmatch(path):
            body, status = msgspec.json.encode(self.anthropic_body()), self.anthropic_status
        else:
            body = msgspec.json.encode(self.ollama_body() if path.startswith(OLLAMA_PREFIX) else self.body())
        return Response(body, status, headers, "application/json")


def bad_request(message: str, *, param: str | None = None, code: str | None = None) -> ApiError:
    """Return a 400: the request itself is at fault."""
    return ApiError(400, message, param=param, code=code)


def require(ok: bool, message: str, *, param: str | None = None) -> None:
    """Raise a 400 unless a condition of the request holds."""
    if not ok:
        raise bad_request(message, param=param)


def unavailable(reason: str) -> ApiError:
    """Return a 503: there is no engine at the moment, or there will be none."""
    return ApiError(503, f"cannot serve requests: {reason}", code="service_unavailable", retry_after=RETRY_SECONDS)


def no_tier(message: str, param: str | None = None) -> ApiError:
    """Return a 503: the tier that a request needs is disabled, or has failed. It may be back later."""
    return ApiError(503, message, param=param, code=NO_TIER, retry_after=RETRY_SECONDS)


async def _api_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, ApiError)
    return error.response(request.url.path)


async def _client_left(request: Request, error: Exception) -> Response:
    return Response(status_code=CLIENT_LEFT)


async def _http_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    headers = error.headers or {}
    response = ApiError(error.status_code, _routing_message(request, error, headers)).response(request.url.path)
    response.headers.update(headers)
    return response


def _routing_message(request: Request, error: HTTPException, headers: Mapping[str, str]) -> str:
    """Return the message of an error that routing raised."""
    message = error.detail
    if error.status_code == 404:
        paths = [route.path for route in request.app.routes if isinstance(route, Route)]
        close = get_close_matches(request.url.path[:LONGEST_SHOWN], paths, n=1, cutoff=CLOSE)
        message = "there is no such path" + (f"; did you mean {close[0]}?" if close else "")
    elif error.status_code == 405:
        message = f"the path exists, but not for this method; it takes {headers.get('Allow', 'another')}"
    return f"{request.method} {request.url.path}: {message}"


ERROR_HANDLERS: Mapping[Any, Callable[[Request, Exception], Awaitable[Response]]] = MappingProxyType(
    {ApiError: _api_error, ClientDisconnect: _client_left, HTTPException: _http_error}
)
"""How the application answers each kind of error. Starlette would call a plain function in a thread."""

"""One HTTP call from its first byte to its last: its id, its sizes, times and ends, and its line in the log."""

from __future__ import annotations

import logging
import re
import secrets
import time
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any, Protocol
from urllib.parse import quote

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from sluice.http.base.errors import CLIENT_LEFT, ApiError
from sluice.http.base.framing import LINES, SERVER_SENT, Heartbeat
from sluice.process.logs import REQUEST_ID
from sluice.types import FinishReason, SamplingParams

LOGGER = logging.getLogger("sluice.server")
REQUESTS = logging.getLogger("sluice.requests")
ID_HEADER = b"x-request-id"
IGNORED_HEADER = b"x-sluice-ignored-fields"
STREAMS = tuple(framing.media_type.encode() for framing in (SERVER_SENT, LINES))
"""Content types of answers that are streams."""
ENGINE_HEADER = b"x-sluice-engine-request"
IGNORED_NAMES = 16
"""Most names in that header."""
GOOD_ID = re.compile(r"[A-Za-z0-9._:/+=@-]{1,128}")
"""Ids that are taken from clients: they cannot break a log line or a header."""
METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE", "CONNECT"})
OTHER_METHOD = "OTHER"
"""Clients may send any word; metrics keep a count for each."""
LONGEST_PATH = 200
PATH_CHARACTERS = "/:@!$&'()*+,;="
"""Characters that are not percent-encoded, besides letters, digits and -._~ (RFC 3986)."""


@dataclass(slots=True)
class Call:
    """A call's sizes, times and ends, without any of its text. Times are those of `time.perf_counter`.

    Logs, metrics and traces may hold all of it: nothing in it is as the client sent it, and nothing is long.
    """

    request_id: str
    method: str
    """One of `METHODS`, or `OTHER_METHOD`."""
    path: str
    """Percent-encoded, and cut after `LONGEST_PATH` characters."""
    headers: dict[str, str]
    """The headers of its trace alone: traceparent and tracestate."""
    began: float
    handler: str = ""
    """The path of its route, such as `/v1/models/{name:path}`; empty if no route has this path."""
    status: int = 0
    """499 (`CLIENT_LEFT`): the client left before the answer. 0: the server ended before it."""
    streams: bool = False
    """It is answered with a stream."""
    first_chunk: float | None = None
    """When the first bytes of the answer's body were sent, without heartbeats."""
    ended: float | None = None
    ignored_fields: list[str] = field(default_factory=list)
    """Unknown fields of its body, percent-encoded and cut (`unknown_fields`)."""
    model: str = ""
    sampling: SamplingParams | None = None
    engine_ids: list[int] = field(default_factory=list)
    """Ids of its requests at the engine, one for each choice."""
    body_bytes: int = 0
    """Bytes of its body, counted only if it is long (`body.BodyReader`)."""
    num_prompts: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    output_tokens: int = 0
    finish_reasons: list[FinishReason] = field(default_factory=list)

    @property
    def seconds(self) -> float:
        """How long it took."""
        return 0.0 if self.ended is None else self.ended - self.began


CALL: ContextVar[Call | None] = ContextVar("sluice_call", default=None)
"""The call that the running task answers."""


class Listener(Protocol):
    """Receives every call when it is over."""

    def answered(self, call: Call) -> None: ...


class Calls:
    """ASGI middleware that gives each call an id, sends it back in a header, and reports the call to listeners.

    An exception, which is a bug in a route, is logged and answered with a 500 that names its type. If the answer has
    begun, it is too late for a status, and the connection is closed instead.

    Args:
        names_requests: an answer's headers name its first request at the engine, as `/v1/trace` does.
    """

    def __init__(self, app: ASGIApp, listeners: tuple[Listener, ...], *, names_requests: bool = False) -> None:
        self._app = app
        self._names_requests = names_requests
        self._listeners = listeners

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        call = _new_call(scope, time.perf_counter())
        tokens = CALL.set(call), REQUEST_ID.set(call.request_id)

        async def answer(message: Message) -> None:
            if message["type"] == "http.response.start":
                call.status = message["status"]
                headers = [*message.get("headers", ()), (ID_HEADER, call.request_id.encode())]
                if call.ignored_fields:
                    headers.append((IGNORED_HEADER, _names_of(call.ignored_fields)))
                if self._names_requests and call.engine_ids:
                    headers.append((ENGINE_HEADER, str(call.engine_ids[0]).encode()))
                call.streams = any(value.startswith(STREAMS) for _, value in headers)
                message = {**message, "headers": headers}
            elif call.first_chunk is None and _brings(message.get("body", b"")):
                call.first_chunk = time.perf_counter()
            await send(message)

        try:
            await self._app(scope, receive, answer)
        except Exception as error:
            if call.status:
                raise
            LOGGER.exception("%s %s failed", call.method, call.path)
            failure = ApiError(500, f"internal error: {type(error).__name__}")
            await failure.response(scope["path"])(scope, receive, answer)
        finally:
            CALL.reset(tokens[0])
            REQUEST_ID.reset(tokens[1])
            call.ended = time.perf_counter()
            route = scope.get("route")
            # A client chooses its path, so only the paths of routes may become labels.
            call.handler = "" if route is None else str(route.path)
            for listener in self._listeners:
                listener.answered(call)


def _brings(body: bytes) -> bool:
    """Return whether a part of a body is more than a heartbeat."""
    return bool(body) and not isinstance(body, Heartbeat)


def _new_call(scope: Scope, now: float) -> Call:
    headers = {name.decode("latin-1").lower(): value.decode("latin-1") for name, value in scope["headers"]}
    request_id = headers.get(ID_HEADER.decode(), "")
    return Call(
        request_id=request_id if GOOD_ID.fullmatch(request_id) else secrets.token_hex(12),
        method=scope["method"] if scope["method"] in METHODS else OTHER_METHOD,
        path=quote(scope["path"], PATH_CHARACTERS, errors="replace")[:LONGEST_PATH],
        headers={name: headers[name] for name in ("traceparent", "tracestate") if name in headers},
        began=now,
    )


def _names_of(fields: list[str]) -> bytes:
    more = len(fields) - IGNORED_NAMES
    return ", ".join([*fields[:IGNORED_NAMES], *([f"and {more} more"] if more > 0 else [])]).encode("ascii")


class RequestLog:
    """Logs a line about every call, at level info."""

    def answered(self, call: Call) -> None:
        if not REQUESTS.isEnabledFor(logging.INFO):
            return
        facts = facts_of(call)
        words = [f"{name} {value}" for name, value in facts.items() if name not in ("method", "path", "status")]
        status = {CLIENT_LEFT: "client left", 0: "cut off"}.get(call.status, call.status)
        message = f"{call.method} {call.path} {status}: {', '.join(words)}"
        REQUESTS.info("%s", message, extra={"request_id": call.request_id, **facts})


def facts_of(call: Call) -> dict[str, Any]:
    """Return what the log says about a call: sizes, times and ends."""
    facts: dict[str, Any] = {
        "method": call.method,
        "path": call.path,
        "status": call.status,
        "seconds": round(call.seconds, 6),
    }
    if not call.engine_ids:
        return facts
    if call.first_chunk is not None:
        facts["first_chunk_seconds"] = round(call.first_chunk - call.began, 6)
    return facts | {
        "prompt_tokens": call.prompt_tokens,
        "cached_tokens": call.cached_tokens,
        "output_tokens": call.output_tokens,
        "finish_reasons": [reason.value for reason in call.finish_reasons],
        "engine_requests": call.engine_ids,
    }

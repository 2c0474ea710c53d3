"""One HTTP call from its first byte to its last: an id for it, and what became of it, for logs, metrics and traces."""

from __future__ import annotations

import re
import secrets
import time
from collections.abc import Callable
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Protocol

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from sluice.types import FinishReason, SamplingParams

ID_HEADER = b"x-request-id"
GOOD_ID = re.compile(r"[A-Za-z0-9._:/+=@-]{1,128}")
"""Ids of clients that are taken over: nothing that could break a log line or a header."""


@dataclass(slots=True)
class Call:
    """What is known of a call. Times are seconds of one clock; nothing of what was said is kept."""

    request_id: str
    method: str
    path: str
    headers: dict[str, str]
    """Of its trace only: traceparent and tracestate."""
    began: float
    handler: str = ""
    """The path with its variables unfilled, if there is such a path."""
    status: int = 0
    """0: it ended before it was answered."""
    streams: bool = False
    first_chunk: float | None = None
    ended: float | None = None
    model: str = ""
    sampling: SamplingParams | None = None
    engine_ids: list[int] = field(default_factory=list)
    """One for each choice."""
    num_prompts: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    output_tokens: int = 0
    finish_reasons: list[FinishReason] = field(default_factory=list)


CALL: ContextVar[Call | None] = ContextVar("sluice_call", default=None)
"""The call that the running task answers."""


class Listener(Protocol):
    """Is told of every call once it is over."""

    def answered(self, call: Call) -> None: ...


class Calls:
    """ASGI middleware: numbers calls, answers with the id, and tells listeners how they went.

    Args:
        clock: seconds.
    """

    def __init__(
        self, app: ASGIApp, listeners: tuple[Listener, ...], clock: Callable[[], float] = time.perf_counter
    ) -> None:
        self._app = app
        self._listeners = listeners
        self._clock = clock

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        call = _call_of(scope, self._clock())
        token = CALL.set(call)

        async def answer(message: Message) -> None:
            if message["type"] == "http.response.start":
                call.status = message["status"]
                headers = [*message.get("headers", ()), (ID_HEADER, call.request_id.encode())]
                call.streams = any(value.startswith(b"text/event-stream") for _, value in headers)
                message = {**message, "headers": headers}
            elif call.first_chunk is None and message.get("body"):
                call.first_chunk = self._clock()
            await send(message)

        try:
            await self._app(scope, receive, answer)
        except Exception:
            call.status = call.status or 500  # which somebody further out answers
            raise
        finally:
            CALL.reset(token)
            call.ended = self._clock()
            call.handler = _handler(scope)
            for listener in self._listeners:
                listener.answered(call)


def _call_of(scope: Scope, now: float) -> Call:
    given = {name.decode("latin-1").lower(): value.decode("latin-1") for name, value in scope["headers"]}
    asked = given.get(ID_HEADER.decode(), "")
    return Call(
        request_id=asked if GOOD_ID.fullmatch(asked) else secrets.token_hex(12),
        method=scope["method"],
        path=scope["path"],
        headers={name: given[name] for name in ("traceparent", "tracestate") if name in given},
        began=now,
    )


def _handler(scope: Scope) -> str:
    """A client chooses its path, so only paths that exist may become labels."""
    route = scope.get("route")
    return "" if route is None else str(route.path)

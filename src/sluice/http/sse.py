"""Server-sent events, and noticing that the client has left."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Coroutine
from contextlib import aclosing
from typing import Any, TypeVar

import msgspec
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from sluice.http.errors import ApiError

DONE = b"data: [DONE]\n\n"

T = TypeVar("T")


def event(content: Any) -> bytes:
    """One event that carries JSON."""
    return b"data: " + msgspec.json.encode(content) + b"\n\n"


class EventStream(Response):
    """Sends events as they come and ends their generator as soon as the client leaves, even if nothing comes.

    The status goes out with the first event: what fails before it is answered as an error.
    """

    media_type = "text/event-stream"
    charset = "utf-8"

    def __init__(self, events: AsyncGenerator[bytes, None]) -> None:
        self.background = None
        self.status_code = 200
        self.body = b""
        self._events = events
        self.init_headers({"cache-control": "no-cache", "x-accel-buffering": "no"})
        del self.headers["content-length"]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await unless_disconnected(receive, self._send(send))

    async def _send(self, send: Send) -> None:
        async with aclosing(self._events) as events:
            try:
                data = await anext(events)
            except ApiError as error:
                await _send_error(send, error)
                return
            await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
            await send({"type": "http.response.body", "body": data, "more_body": True})
            async for data in events:
                await send({"type": "http.response.body", "body": data, "more_body": True})
            await send({"type": "http.response.body", "body": b"", "more_body": False})


async def _send_error(send: Send, error: ApiError) -> None:
    response = error.response()
    await send({"type": "http.response.start", "status": response.status_code, "headers": response.raw_headers})
    await send({"type": "http.response.body", "body": response.body, "more_body": False})


async def unless_disconnected(receive: Receive, work: Coroutine[Any, Any, T]) -> T | None:
    """The result of `work`, or None if the client left first; then the work is cancelled and over on return.

    `receive` must have given the whole request body already.
    """
    working = asyncio.create_task(work)
    leaving = asyncio.create_task(_disconnected(receive))
    try:
        await asyncio.wait({working, leaving}, return_when=asyncio.FIRST_COMPLETED)
    finally:
        leaving.cancel()
        if not working.done():
            working.cancel()
        await asyncio.wait({working, leaving})
    return None if working.cancelled() else working.result()


async def _disconnected(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass

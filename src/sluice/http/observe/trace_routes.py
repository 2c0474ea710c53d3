"""`GET /v1/trace`: what the engine does, as it does it, in server-sent events."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Mapping
from types import MappingProxyType

from starlette.requests import Request
from starlette.responses import Response

from sluice.http.base.backend import Backend, Service
from sluice.http.base.errors import unavailable
from sluice.http.base.routes import EVENT_STREAM, Routes
from sluice.http.call.answers import Streamed
from sluice.http.observe.trace_events import TraceEvent
from sluice.http.observe.trace_feed import Subscription, TraceFeed

ALIVE_SECONDS = 10.0
"""Seconds without an event after which a comment is sent: proxies close silent connections."""
COMMENT = b":\n\n"
HEADERS: Mapping[str, str] = MappingProxyType({"cache-control": "no-store", "x-accel-buffering": "no"})


def add_trace(routes: Routes, backend: Backend, feed: TraceFeed, *, alive_seconds: float = ALIVE_SECONDS) -> None:
    """Add the route.

    Args:
        alive_seconds: between two signs of life.
    """
    backend.at_end(feed.close)

    @routes.add(
        "GET",
        "/v1/trace",
        summary="What each step of the engine does, as it happens: counts and times",
        media_type=EVENT_STREAM,
        events=TraceEvent,
        events_end=None,
    )
    async def trace(request: Request) -> Response:
        service = backend.service()
        if feed.is_closed:
            raise unavailable(backend.status)
        if request.method == "HEAD":
            return Response(headers=HEADERS, media_type=EVENT_STREAM)
        subscription = feed.subscribe(service.client, service.model, _page_size(service))
        rest = _events(feed, subscription, alive_seconds)
        return Streamed(await anext(rest), rest, EVENT_STREAM, **HEADERS)


async def _events(feed: TraceFeed, subscription: Subscription, alive_seconds: float) -> AsyncGenerator[bytes, None]:
    try:
        while not subscription.is_over:
            try:
                async with asyncio.timeout(alive_seconds):  # `wait_for` would make a task of it
                    events = await subscription.next()
            except TimeoutError:
                events = COMMENT
            yield events
    finally:
        feed.leave(subscription)


def _page_size(service: Service) -> int:
    (page_size,) = (setting.value for setting in service.settings if setting.name == "page_size")
    assert isinstance(page_size, int), "a running engine has pages"
    return page_size

"""What nobody foresaw: a bug in a route is answered like any other error. It stands within `Calls`, so that the answer
carries the id of its call, and the log its traceback under the same."""

from __future__ import annotations

import logging

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from sluice.http.errors import ApiError

LOGGER = logging.getLogger("sluice.server")


class Failures:
    """ASGI middleware: an exception becomes a 500 that names its type, or breaks off an answer that has begun."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        has_begun = False

        async def answer(message: Message) -> None:
            nonlocal has_begun
            has_begun = True
            await send(message)

        try:
            await self._app(scope, receive, answer)
        except Exception as error:
            if has_begun:
                raise  # too late for a status; the connection is closed
            LOGGER.exception("%s %s failed", scope["method"], scope["path"])
            response = ApiError(500, f"internal error: {type(error).__name__}").response()
            await response(scope, receive, send)

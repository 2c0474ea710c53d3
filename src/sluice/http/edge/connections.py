"""Accepts connections: as many as there are descriptors for, and no flood of errors when there are none.

Up to `--max-connections` are served. A few more are accepted to be answered: health checks as always, other requests
with status 503. Those beyond wait in the kernel's queue until one of these ends.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import resource
import socket
import ssl
from bisect import bisect_right
from collections.abc import Callable, Mapping
from functools import partial
from types import MappingProxyType
from typing import Any

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from sluice.config import ConfigError
from sluice.http.base.auth import OPEN_PATHS
from sluice.http.base.errors import ApiError
from sluice.http.edge.one_by_one import CALL, OneByOne
from sluice.process.log_limiter import LogLimiter

LOGGER = logging.getLogger("sluice.server")
MOST_DESCRIPTORS = 65536
"""Descriptors to which the process raises its own limit, if its hard limit allows."""
MOST_CONNECTIONS = 8192
"""Connections by default. An idle one takes 20 kB."""
LEAST_RESERVED, RESERVED = 52, 128
"""Descriptors for files, the engine and those that follow it: half of all, at least and at most so many. A server
without connections has 46 open, with those that it keeps for the start of another engine."""
EXTRA, LEAST_EXTRA = 16, 8
"""For each `EXTRA` connections that may be served, one more is accepted to be refused: at least `LEAST_EXTRA`, at most
as many as may be served."""
BURST, OPENED, ANY = 64, 32, 4
"""Connections that are accepted before other work continues, those of them that are opened, and the first ones, which
are opened without a look at what they begin with. To accept one takes 0.1 ms, to open it, read its request and begin to
answer it 1 ms."""
FULL_SECONDS = 0.05
"""Seconds between two looks at the kernel's queue while as many connections are open as may be."""
FAILED_SECONDS = 1.0
"""Seconds after an accept that failed until the next one."""
LOG_SECONDS = 60.0
"""Seconds between two messages about the same thing."""
REFUSED = "sluice.refused"
"""Key of a request's `state` that says that its connection is one too many."""
RETRY_SECONDS = 1
TLS_SECONDS: Mapping[str, Any] = MappingProxyType({"ssl_handshake_timeout": 20.0, "ssl_shutdown_timeout": 5.0})
"""Seconds that a client has to open an encrypted connection, and to end it when the server has."""
DRAIN_SECONDS = 1.0
"""Seconds that a client has to send the body of a request that is refused."""


def descriptor_limit() -> int:
    """Return how many descriptors this process may have; raise the limit first, as far as it may."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = MOST_DESCRIPTORS if hard == resource.RLIM_INFINITY else min(hard, MOST_DESCRIPTORS)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
        return wanted
    return MOST_DESCRIPTORS if soft == resource.RLIM_INFINITY else soft


def max_connections(asked: int | None, descriptors: int) -> int:
    """Return the most connections that are served.

    Args:
        asked: the option's value.
        descriptors: the most of this process.

    Raises:
        ConfigError: there are not descriptors for as many as asked.
    """
    left = max(2, descriptors - min(max(LEAST_RESERVED, descriptors // 2), RESERVED))
    most = bisect_right(range(left), left, key=with_extra) - 1
    if asked is None:
        return min(most, MOST_CONNECTIONS)
    if asked > most:
        raise ConfigError(
            f"--max-connections {asked} is more than the limit of {descriptors} open files leaves: at most {most};"
            " raise it with ulimit -n"
        )
    return asked


def with_extra(limit: int) -> int:
    """Return how many connections are accepted if `limit` of them are served, at least 1: at most twice as many."""
    return limit + min(max(LEAST_EXTRA, limit // EXTRA), limit)


class Acceptor:
    """Accepts the connections of a listening socket.

    Args:
        listener: is not closed here.
        make_protocol: returns the protocol of a connection; True: it is one too many.
        num_open: returns how many connections are open.
        limit: of the connections that are served.
        tls: what connections are opened with; None: they are not encrypted.
        failed_seconds: pause after an accept that failed.
    """

    def __init__(
        self,
        listener: socket.socket,
        make_protocol: Callable[[bool], asyncio.Protocol],
        num_open: Callable[[], int],
        limit: int,
        *,
        tls: ssl.SSLContext | None = None,
        failed_seconds: float = FAILED_SECONDS,
    ) -> None:
        self._listener = listener
        self._make_protocol = make_protocol
        self._num_open = num_open
        self._limit = limit
        self._tls = {} if tls is None else {"ssl": tls, **TLS_SECONDS}
        self._most = with_extra(limit)
        self._failed_seconds = failed_seconds
        self._loop = asyncio.get_running_loop()
        self._opening: set[asyncio.Task[None]] = set()
        self._calls = OneByOne()
        self._waiting: dict[socket.socket, bool] = {}
        """Accepted connections whose first request may be a call, and whether they are one too many."""
        self._pause: asyncio.TimerHandle | None = None
        self._failures, self._refusals = LogLimiter(LOG_SECONDS), LogLimiter(LOG_SECONDS)
        listener.setblocking(False)

    def start(self) -> None:
        """Begin to accept connections, or continue."""
        self._pause = None
        self._loop.add_reader(self._listener, self._accept)

    def close(self) -> None:
        """Accept no more."""
        while self._waiting:
            self._waiting.popitem()[0].close()
        self._loop.remove_reader(self._listener)
        if self._pause is not None:
            self._pause.cancel()

    def _accept(self) -> None:
        opened = 0
        for _ in range(BURST):
            count = self._num_open() + len(self._opening) + len(self._waiting)
            if count >= self._most:
                self._pause_for(FULL_SECONDS)
                return
            try:
                connection, _ = self._listener.accept()
                connection.setblocking(False)
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as error:
                self._failures.warn(LOGGER, f"a connection cannot be accepted: {error}; trying again")
                self._pause_for(self._failed_seconds)
                return
            if count >= self._limit:
                self._refusals.warn(LOGGER, f"a connection is refused: {self._limit} are open (--max-connections)")
            is_refused = count >= self._limit
            sent = first_bytes(connection)
            if opened < ANY or sent not in (b"", CALL):
                self._begin(connection, is_refused=is_refused)
                opened += 1
                if opened == OPENED:
                    return
                continue
            self._waiting[connection] = is_refused
            self._calls.add(partial(self._take_turn, connection))
            if not sent:
                self._loop.call_soon(self._look_again, connection)

    def _look_again(self, connection: socket.socket) -> None:
        """Open a connection before its turn if its first request, which has arrived meanwhile, is no call."""
        if connection in self._waiting and first_bytes(connection) not in (b"", CALL):
            self._take_turn(connection)

    def _take_turn(self, connection: socket.socket) -> None:
        if connection in self._waiting:
            self._begin(connection, is_refused=self._waiting.pop(connection))

    def _begin(self, connection: socket.socket, *, is_refused: bool) -> None:
        task = self._loop.create_task(self._open(connection, is_refused=is_refused))
        self._opening.add(task)
        task.add_done_callback(self._opening.discard)

    def _pause_for(self, seconds: float) -> None:
        self._loop.remove_reader(self._listener)
        self._pause = self._loop.call_later(seconds, self.start)

    async def _open(self, connection: socket.socket, *, is_refused: bool) -> None:
        try:
            await self._loop.connect_accepted_socket(lambda: self._make_protocol(is_refused), connection, **self._tls)
        except OSError as error:
            self._failures.warn(LOGGER, f"a connection cannot be opened: {error}")
            connection.close()


def first_bytes(connection: socket.socket) -> bytes:
    """Return the beginning of what a connection that does not block has sent, as long as `CALL` at most."""
    try:
        return connection.recv(len(CALL), socket.MSG_PEEK)
    except OSError:
        return b""


class RefuseExtra:
    """ASGI middleware that answers the requests of connections that are too many with 503, except health checks."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if not scope.get("state", {}).get(REFUSED):
            await self._app(scope, receive, send)
            return

        async def closing(message: Message) -> None:
            if message["type"] == "http.response.start":
                message = {**message, "headers": [*message.get("headers", ()), (b"connection", b"close")]}
            await send(message)

        if scope["path"] in OPEN_PATHS:
            await self._app(scope, receive, closing)
            return
        with contextlib.suppress(TimeoutError):  # a client that still sends would not see an answer
            async with asyncio.timeout(DRAIN_SECONDS):
                while (await receive()).get("more_body"):
                    pass
        response = ApiError(
            503,
            "the server has as many connections as it accepts (--max-connections)",
            code="too_many_connections",
            retry_after=RETRY_SECONDS,
        ).response(scope["path"])
        await response(scope, receive, closing)

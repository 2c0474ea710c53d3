"""The HTTP server beneath the application: uvicorn, with limits on connections and their times."""

from __future__ import annotations

import contextlib
import logging
import socket
import ssl
import time
from collections.abc import Iterator
from typing import Self

import uvicorn
from starlette.types import ASGIApp

from sluice.http.edge.connections import MOST_CONNECTIONS, REFUSED, Acceptor
from sluice.http.edge.one_by_one import OneByOne
from sluice.http.edge.timeouts import RefusedProtocol, TimeLimitedProtocol

STALL_TICKS = 100
"""Ticks of uvicorn, ten a second, in which each connection is looked at once, whether its client takes its answer."""
EXIT_SECONDS = 2
"""How long open connections may take to end once their streams were ended."""


class HttpServer(uvicorn.Server):
    """uvicorn without its signal handlers and its way to accept: in their place are `serve.StopSignals` and `Acceptor`.

    Args:
        limit: of connections.
        tls: what connections are opened with; None: they are not encrypted.
    """

    def __init__(self, config: uvicorn.Config, limit: int, tls: ssl.SSLContext | None = None) -> None:
        super().__init__(config)
        self._limit = limit
        self._tls = tls
        self._acceptors: list[Acceptor] = []
        self._calls = OneByOne()
        """Begins calls on connections that are open."""

    @classmethod
    def of(cls, app: ASGIApp, limit: int = MOST_CONNECTIONS, tls: ssl.SSLContext | None = None) -> Self:
        config = uvicorn.Config(
            app,
            http=TimeLimitedProtocol,
            ws="none",  # a connection that is handed on is beyond the limits
            lifespan="off",
            log_config=None,  # its messages go where our own log goes
            access_log=False,
            timeout_graceful_shutdown=EXIT_SECONDS,
        )
        # Below, uvicorn logs a line or two for every request that is no HTTP, as many as a client likes.
        logging.getLogger("uvicorn.error").setLevel(logging.ERROR)
        return cls(config, limit, tls)

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets=[])
        connections = self.server_state.connections
        self._acceptors = [
            Acceptor(listener, self._protocol, lambda: len(connections), self._limit, tls=self._tls)
            for listener in sockets or ()
        ]
        for acceptor in self._acceptors:
            acceptor.start()

    def _protocol(self, is_refused: bool) -> TimeLimitedProtocol:
        kind = RefusedProtocol if is_refused else TimeLimitedProtocol
        return kind(self.config, self.server_state, {REFUSED: is_refused}, self._calls)

    async def on_tick(self, counter: int) -> bool:
        now, share = time.monotonic(), counter % STALL_TICKS
        for connection in list(self.server_state.connections):
            if hash(connection) % STALL_TICKS == share:  # to look at thousands at once takes 20 ms
                assert isinstance(connection, TimeLimitedProtocol)
                connection.check_stall(now)
        return await super().on_tick(counter)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        for acceptor in self._acceptors:
            acceptor.close()
        await super().shutdown(sockets=sockets)

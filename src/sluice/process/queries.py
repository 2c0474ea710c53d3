"""Queries: messages that an engine answers, and their answers."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from sluice.engine.messages import AdapterRead, FromServer, PagesOffered, PagesTaken, Stats

Answer = Stats | PagesOffered | PagesTaken | AdapterRead


class Queries:
    """The queries that are not answered."""

    def __init__(self) -> None:
        self._open: dict[int, asyncio.Future[Answer]] = {}

    async def ask(self, send: Callable[[FromServer], None], query_id: int, message: FromServer) -> Answer:
        """Send a query and wait for its answer, or the error of `fail`."""
        self._open[query_id] = asyncio.get_running_loop().create_future()
        send(message)
        try:
            return await self._open[query_id]
        finally:
            self._open.pop(query_id, None)

    def answered(self, answer: Answer) -> None:
        """Hand an answer to the one who waits for it."""
        query = self._open.get(answer.query_id)
        if query is not None and not query.done():
            query.set_result(answer)

    def fail(self, error: Exception) -> None:
        """Let all queries fail."""
        for query in self._open.values():
            if not query.done():
                query.set_exception(error)

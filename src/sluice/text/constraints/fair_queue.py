"""A queue whose clients take turns, so that one with much work delays another by little."""

from __future__ import annotations

import asyncio
from collections import OrderedDict, deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager


class QueueFull(Exception):
    """Too many wait."""


class FairQueue:
    """Admits one at a time: round robin between clients, first come first served within one.

    Args:
        most: that may wait and work for one client.
        most_of_all: the same of all clients together.
    """

    def __init__(self, most: int, most_of_all: int) -> None:
        self._most, self._most_of_all = most, most_of_all
        self._waiting: OrderedDict[str, deque[asyncio.Future[None]]] = OrderedDict()
        """By client, the one whose turn is next first."""
        self._counts: dict[str, int] = {}
        self._is_busy = False

    @asynccontextmanager
    async def turn(self, client: str) -> AsyncIterator[None]:
        """Wait for a turn of this client, and hold it.

        Raises:
            QueueFull: too many of this client's wait, or of all.
        """
        count = self._counts.get(client, 0)
        if count >= self._most or sum(self._counts.values()) >= self._most_of_all:
            raise QueueFull
        self._counts[client] = count + 1
        try:
            await self._admitted(client)
            try:
                yield
            finally:
                self._admit_next()
        finally:
            self._counts[client] -= 1
            if not self._counts[client]:
                del self._counts[client]

    async def _admitted(self, client: str) -> None:
        if not self._is_busy:
            self._is_busy = True
            return
        place = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(client, deque()).append(place)
        try:
            await place
        except asyncio.CancelledError:
            if not place.cancelled():  # it was admitted in the same moment
                self._admit_next()
            raise

    def _admit_next(self) -> None:
        """Admit the first of the client whose turn it is; those that were cancelled have left."""
        while self._waiting:
            client, places = self._waiting.popitem(last=False)
            place = places.popleft()
            if places:
                self._waiting[client] = places
            if not place.done():
                place.set_result(None)
                return
        self._is_busy = False

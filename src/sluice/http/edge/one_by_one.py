"""Lets calls that come at once begin one after the other, between which everything else continues."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable

CALL = b"POST "
"""What the first bytes of a call are."""


class OneByOne:
    """Runs functions in order, one in each iteration of the running event loop.

    To open a connection, to read its request and to begin an answer takes a millisecond. Of 2,000 calls that come at
    once, a health check among them would wait for all.
    """

    def __init__(self) -> None:
        self._waiting: deque[Callable[[], None]] = deque()

    def __len__(self) -> int:
        return len(self._waiting)

    def add(self, work: Callable[[], None]) -> None:
        """Run a function after those that wait."""
        self._waiting.append(work)
        if len(self._waiting) == 1:
            asyncio.get_running_loop().call_soon(self._run_next)

    def _run_next(self) -> None:
        work = self._waiting.popleft()
        if self._waiting:
            asyncio.get_running_loop().call_soon(self._run_next)
        work()

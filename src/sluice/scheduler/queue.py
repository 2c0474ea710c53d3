"""The waiting queue: who is looked at next for admission."""

from __future__ import annotations

from bisect import insort
from collections.abc import Iterator

from sluice.scheduler.request import Request


class WaitingQueue:
    """First come, first served: in order of id, which is the order of arrival.

    A retracted request comes back under its old id, so it stands before everything that has not run yet.
    """

    def __init__(self) -> None:
        self._requests: list[Request] = []

    def __len__(self) -> int:
        return len(self._requests)

    def __iter__(self) -> Iterator[Request]:
        return iter(self._requests)

    def head(self) -> Request:
        return self._requests[0]

    def push(self, request: Request) -> None:
        insort(self._requests, request, key=lambda waiting: waiting.id)

    def remove(self, request: Request) -> None:
        self._requests.remove(request)

"""The times by which requests must have begun, or ended. The caller gives the time."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from heapq import heapify, heappop, heappush

from sluice.types import FinishReason, Output, Submit

KEPT_STALE = 64
"""Deadlines of ended requests that may stay in memory until they are due, beside four for each open request."""


class Deadlines:
    """The deadlines of open requests, earliest first. False if there are none."""

    def __init__(self) -> None:
        self._heap: list[tuple[float, int, FinishReason]] = []
        self._open: set[int] = set()
        """Requests that came with a deadline and have not ended."""

    def __bool__(self) -> bool:
        return bool(self._heap)

    @property
    def next(self) -> float | None:
        """The earliest deadline."""
        return self._heap[0][0] if self._heap else None

    @property
    def num_kept(self) -> int:
        """Deadlines in memory, those of ended requests included."""
        return len(self._heap)

    def watch(self, submit: Submit) -> None:
        """Add the deadlines of a request, if it has any."""
        for at, reason in ((submit.start_deadline, FinishReason.EXPIRED), (submit.deadline, FinishReason.TIMEOUT)):
            if at is not None:
                heappush(self._heap, (at, submit.request_id, reason))
                self._open.add(submit.request_id)

    def due(self, now: float) -> Iterator[tuple[int, FinishReason]]:
        """Yield the requests that are late, and the reason to end them with; each deadline once."""
        while self._heap and self._heap[0][0] <= now:
            _, request_id, reason = heappop(self._heap)
            if request_id in self._open:
                yield request_id, reason

    def forget(self, outputs: Sequence[Output]) -> None:
        """Drop the deadlines of requests that ended with these outputs. They leave memory when there are too many."""
        self._open.difference_update(output.request_id for output in outputs if output.finish_reason is not None)
        if len(self._heap) > KEPT_STALE + 4 * len(self._open):
            self._heap = [entry for entry in self._heap if entry[1] in self._open]
            heapify(self._heap)

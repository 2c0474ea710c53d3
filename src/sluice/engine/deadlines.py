"""Which requests are to have begun, or ended, by when. It is asked with the time and reads no clock itself."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from heapq import heapify, heappop, heappush

from sluice.engine.messages import Submit
from sluice.types import FinishReason, Output

KEPT_STALE = 64
"""Deadlines of ended requests that are always kept until they are due."""


class Deadlines:
    """The deadlines of open requests, earliest first. False if there are none."""

    def __init__(self) -> None:
        self._heap: list[tuple[float, int, FinishReason]] = []
        self._open: dict[int, int] = {}
        """Request -> how many of the heap's entries are its."""
        self._stale = 0

    def __bool__(self) -> bool:
        return bool(self._open)

    @property
    def num_kept(self) -> int:
        """Deadlines in memory, those of ended requests included."""
        return len(self._heap)

    def watch(self, submit: Submit) -> None:
        """Take over the deadlines of a request, if it has any."""
        wanted = ((submit.begin_by, FinishReason.EXPIRED), (submit.end_by, FinishReason.TIMEOUT))
        for at, reason in wanted:
            if at is not None:
                heappush(self._heap, (at, submit.request_id, reason))
                self._open[submit.request_id] = self._open.get(submit.request_id, 0) + 1

    def due(self, now: float) -> Iterator[tuple[int, FinishReason]]:
        """Whom to end, and why; each deadline once."""
        while self._heap and self._heap[0][0] <= now:
            _, request_id, reason = heappop(self._heap)
            left = self._open.pop(request_id, 0)
            if left == 0:
                self._stale -= 1
                continue
            if left > 1:
                self._open[request_id] = left - 1
            yield request_id, reason

    def forget(self, outputs: Sequence[Output]) -> None:
        """Drop the deadlines of requests that ended with these outputs."""
        if not self._open:
            return
        for output in outputs:
            if output.finish_reason is not None:
                self._stale += self._open.pop(output.request_id, 0)
        if self._stale > max(KEPT_STALE, len(self._heap) // 2):
            self._heap = [entry for entry in self._heap if entry[1] in self._open]
            heapify(self._heap)
            self._stale = 0

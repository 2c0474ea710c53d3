"""QueueLimits: how much may wait. A request that comes while the queue is full is refused at once and costs nothing.

A request that was accepted is never refused later: if it is preempted it waits again, however full the queue is.
"""

from __future__ import annotations

from sluice.scheduler.prefix_match import reusable_len
from sluice.scheduler.request import Request
from sluice.scheduler.state import SchedulerState
from sluice.types import SchedulerLimits


class QueueFull(ValueError):
    """The queue has no room for a request that is otherwise fine."""


class QueueLimits:
    """Bounds on what waits, in requests and in tokens.

    The tokens are those to be prefilled before a newcomer gets its turn: of requests that wait, compile or are held
    those that no tier holds; of half-computed ones those that are not planned. They are counted when a request comes,
    and counted again, once a step at most, before a request is refused because of them.
    """

    def __init__(self, state: SchedulerState, limits: SchedulerLimits) -> None:
        self._state = state
        self._max_requests = limits.max_queued_requests
        self._max_tokens = limits.max_queued_tokens
        self._recounted_at: int | None = None

    def check_count(self) -> None:
        """Check that one more request may wait.

        Raises:
            QueueFull: as many requests wait as may. Requests that came since the last plan do not count as far as there
                are free slots, unless that plan left requests waiting all the same.
        """
        state = self._state
        waiting = len(state.waiting) + len(state.compiling) + len(state.adapters.requests)
        free = 0 if self._state.left_waiting else len(self._state.free_slots)
        if self._max_requests and waiting >= self._max_requests + free:
            raise QueueFull(
                f"the queue is full: {waiting} requests wait, --max-queued-requests is {self._max_requests}"
            )

    def check_tokens(self, request: Request) -> None:
        """Check that the uncached tokens of a request may wait.

        Raises:
            QueueFull: they and those that wait already are more than may wait. A request alone is never refused.
        """
        if not self._max_tokens:
            return
        request.uncached = self._uncached(request)
        if not self._has_room(request.uncached) and self._recounted_at != self._state.step:
            self._recount()
        if not self._has_room(request.uncached):
            raise QueueFull(
                f"the queue is full: {self._waiting_tokens()} uncached tokens wait and the prompt adds"
                f" {request.uncached}, --max-queued-tokens is {self._max_tokens}"
            )

    def _has_room(self, tokens: int) -> bool:
        waiting = self._waiting_tokens()
        return waiting == 0 or waiting + tokens <= self._max_tokens

    def _waiting_tokens(self) -> int:
        partial = sum(request.extend_len for request in self._state.partial.values())
        loading = sum(self._to_compute(request) for request in self._state.loading.values())
        others = (*self._state.compiling.values(), *self._state.adapters.requests.values())
        return partial + loading + sum(each.uncached for each in others) + self._state.waiting.uncached_tokens

    def _to_compute(self, request: Request) -> int:
        """Return the tokens left to compute of a request whose prefix is being loaded, if all of it arrives."""
        coming = 0 if request.lease is None else request.lease.num_loading
        return request.extend_len - coming * self._state.kv.page_size

    def _uncached(self, request: Request) -> int:
        # All pages are found at once: a prompt is not refused because of pages that a later call would find.
        return len(request.tokens) - reusable_len(self._state.kv, request, most=len(request.tokens))

    def _recount(self) -> None:
        self._recounted_at = self._state.step
        for request in self._state.waiting:
            self._state.waiting.set_uncached(request, self._uncached(request))

"""What subscribers of `GET /v1/trace` receive. An event is made once, and waits for each of them in a bounded queue."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence

from sluice.engine.clock import micros_at
from sluice.engine.step_watch import StepSeen, StepsSeen
from sluice.http.base.errors import RETRY_SECONDS, ApiError
from sluice.http.observe.trace_events import (
    DroppedEvent,
    EngineEvent,
    HelloEvent,
    RequestsEvent,
    StepsEvent,
    TracedChunk,
    TracedEnd,
    TracedPool,
    TracedRequest,
    TracedSlice,
    TracedStep,
    TracedTier,
    framed,
)
from sluice.process.client import EngineClient
from sluice.process.observer import Observer
from sluice.types import FinishReason, Occupancy, Output, Submit

MOST_SUBSCRIBERS = 16
MOST_WAITING = 64
"""Events that wait for a subscriber: some fifteen seconds of steps."""
MOST_WAITING_BYTES = 1 << 20
GATHER_SECONDS = 0.25
"""Seconds after which requests that came or ended are sent, if no steps come before."""
MOST_GATHERED = 256
"""Requests that came or ended, after which they are sent at once."""


class Subscription:
    """One subscriber's queue."""

    def __init__(self, first: bytes) -> None:
        self._waiting: deque[bytes] = deque([first])
        self._num_bytes = len(first)
        self._news = asyncio.Event()
        self._news.set()
        self._last: bytes | None = None
        """What ends the stream; None while it continues."""
        self.is_over = False
        """All was taken that is to be sent."""

    def put(self, event: bytes) -> bool:
        """Add an event. Returns False, and adds none, if as many wait as may."""
        if len(self._waiting) >= MOST_WAITING or self._num_bytes + len(event) > MOST_WAITING_BYTES:
            return False
        self._waiting.append(event)
        self._num_bytes += len(event)
        self._news.set()
        return True

    def end(self, last: bytes = b"") -> None:
        """Drop what waits, and end the stream with this event."""
        self._waiting.clear()
        self._last = last
        self._news.set()

    async def next(self) -> bytes:
        """Wait for events, and return all of them that are there."""
        await self._news.wait()
        self._news.clear()
        events = b"".join(self._waiting)
        self._waiting.clear()
        self._num_bytes = 0
        if self._last is None:
            return events
        self.is_over = True
        return events + self._last


class TraceFeed(Observer):
    """Makes events of what passes between the server and its engine, while there are subscribers.

    Without any it looks at nothing, and the engine reports no steps. It lives in the event loop.

    Args:
        now: the engine's clock. Times of events count from this moment.
        server: what tells this server's traces from those of others, random.
    """

    def __init__(self, now: Callable[[], float], server: str) -> None:
        self._clock = now
        self._server = server
        self._start = micros_at(now())
        self._subscriptions: set[Subscription] = set()
        self._client: EngineClient | None = None
        """Client whose engine reports its steps; None without subscribers."""
        self._arrived: list[TracedRequest] = []
        self._ended: list[TracedEnd] = []
        self._ended_here: set[int] = set()
        """Requests that were aborted, and whose end the engine has not confirmed."""
        self._timer: asyncio.TimerHandle | None = None
        self._is_closed = False

    @property
    def num_subscribers(self) -> int:
        return len(self._subscriptions)

    @property
    def is_closed(self) -> bool:
        return self._is_closed

    def subscribe(self, client: EngineClient, model: str, page_size: int) -> Subscription:
        """Return the queue of a new subscriber, to be given to `leave`.

        Args:
            model: its name in the API.
            page_size: tokens of a page.

        Raises:
            ApiError: 503, there are too many.
        """
        if self.num_subscribers >= MOST_SUBSCRIBERS:
            raise ApiError(
                503,
                f"the trace has {MOST_SUBSCRIBERS} subscribers, as many as it may have",
                code="too_many_subscribers",
                retry_after=RETRY_SECONDS,
            )
        requests = [
            TracedRequest(each.request_id, self._since(each.arrived), each.prompt_tokens, each.output_tokens)
            for each in client.open_requests()
        ]
        self._flush()
        hello = HelloEvent(self._now(), self._server, model, client.has_engine, page_size, requests)
        subscription = Subscription(framed(hello))
        if self._client is None:
            self._client = client
            client.watch_steps(True)
        self._subscriptions.add(subscription)
        return subscription

    def leave(self, subscription: Subscription) -> None:
        """Forget a subscriber. A second call does nothing."""
        self._subscriptions.discard(subscription)
        if not self._subscriptions and self._client is not None:
            self._client.watch_steps(False)
            self._client = None
            self._cancel_timer()
            self._arrived.clear()
            self._ended.clear()
            self._ended_here.clear()

    def close(self) -> None:
        """End all streams, and let none begin."""
        self._is_closed = True
        for subscription in list(self._subscriptions):
            subscription.end()
            self.leave(subscription)

    def submitted(self, request: Submit) -> None:
        if self._client is not None:
            arrived = self._since(request.arrived) if request.arrived else self._now()
            self._arrived.append(TracedRequest(request.request_id, arrived, len(request.prompt)))
            self._gather()

    def received(self, outputs: Sequence[Output]) -> None:
        if self._client is None:
            return
        for output in outputs:
            if output.finish_reason is None:
                continue
            if output.request_id in self._ended_here:
                self._ended_here.remove(output.request_id)
            else:
                tokens = output.start + len(output.token_ids)
                self._end(TracedEnd(output.request_id, self._now(), output.finish_reason, tokens, *output.cached))

    def ended(self, request_id: int, reason: FinishReason) -> None:
        if self._client is not None:
            self._ended_here.add(request_id)
            self._end(TracedEnd(request_id, self._now(), reason, None))

    def serving(self, is_serving: bool) -> None:
        if self._client is not None:
            self._ended_here.clear()  # an engine that ended confirms nothing
            self._flush()
            self._send(framed(EngineEvent(self._now(), is_serving)))

    def stepped(self, seen: StepsSeen) -> None:
        if self._client is None:
            return
        self._flush()
        steps = [self._step(step) for step in seen.steps]
        self._send(framed(StepsEvent(self._now(), steps, pool_of(seen.occupancy))))

    def _end(self, end: TracedEnd) -> None:
        self._ended.append(end)
        self._gather()

    def _gather(self) -> None:
        if len(self._arrived) + len(self._ended) >= MOST_GATHERED:
            self._flush()
        elif self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(GATHER_SECONDS, self._flush)

    def _flush(self) -> None:
        """Send the requests that came or ended."""
        self._cancel_timer()
        if self._arrived or self._ended:
            event = framed(RequestsEvent(self._now(), self._arrived, self._ended))
            self._arrived, self._ended = [], []
            self._send(event)

    def _cancel_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _send(self, event: bytes) -> None:
        """Give an event to all subscribers. Those that read too slowly are dropped."""
        for subscription in [each for each in self._subscriptions if not each.put(event)]:
            subscription.end(framed(DroppedEvent(self._now())))
            self.leave(subscription)

    def _since(self, micros: int) -> int:
        return micros - self._start

    def _now(self) -> int:
        return self._since(micros_at(self._clock()))

    def _step(self, seen: StepSeen) -> TracedStep:
        return TracedStep(
            step=seen.step,
            began=self._since(seen.began),
            micros=seen.micros,
            known=self._since(seen.known),
            bound_by=seen.bound_by,
            failed=seen.failed,
            decodes=None if seen.decodes is None else list(seen.decodes),
            chunks=[TracedChunk(*chunk) for chunk in seen.chunks],
            slices=[TracedSlice(*part) for part in seen.slices],
            admitted=list(seen.admitted),
            counts=dict(seen.counts),
            loads=seen.loads,
            stores=seen.stores,
        )


def pool_of(now: Occupancy) -> TracedPool:
    """Return how full an engine is."""
    return TracedPool(
        running=now.running,
        waiting=now.waiting,
        loading=now.loading,
        preemptions=now.preemptions,
        free_pages=now.free_pages,
        cached_pages=now.cached_pages,
        total_pages=now.total_pages,
        tiers=[TracedTier(use.tier, use.used, use.total) for use in now.tiers],
    )

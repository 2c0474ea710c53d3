"""The server's side of the engine: submit requests, receive their outputs, abort them.

The client outlives the engine's process. For every open request it keeps the request and the tokens delivered so far.
That is enough to continue it in another engine with the same result, since a sample depends only on the model, the
tokens before it, the seed and its position. While no engine runs, requests wait here.

Everything runs in the event loop. The client knows no socket: it is given a function that sends messages, and
`deliver` is called with the messages that arrive.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Collection, Sequence
from typing import NamedTuple

from sluice.engine.clock import WallClock
from sluice.engine.messages import Abort, FlushCache, FromServer, QueryStats, Stats, WatchSteps
from sluice.engine.step_watch import StepsSeen
from sluice.process.adapters import AdapterBook
from sluice.process.delivery import Delivery
from sluice.process.engine_state import RecoveryStats
from sluice.process.observer import Observer, OpenRequest
from sluice.process.quarantine import Quarantine
from sluice.process.queries import Answer, Queries
from sluice.process.start_rate import StartRate
from sluice.process.wire import Delivered, KvEvents, Outputs
from sluice.types import FinishReason, Output, Submit

Send = Callable[[FromServer], None]
NO_ENGINE = "the engine died; another one is started"
MAX_TOGETHER = 64
"""Outputs of a call that are handled, or requests that are aborted, without a pause for the rest of the event loop."""


class EngineGone(RuntimeError):
    """The engine cannot serve: its process ended, or the server is shutting down."""


class _OpenRequest(NamedTuple):
    """A request that has neither ended nor been aborted."""

    inbox: Inbox
    delivery: Delivery


class EngineClient:
    """Gives out ids of requests, sends these to the engine and puts each output into the inbox of its request.

    Args:
        send: sends to an engine that is there already, the first; None until `attach`.
        observer: receives requests and outputs.
        recovery: where recoveries are counted.
        clock: returns seconds, as the engine counts them; None is the wall clock.
    """

    def __init__(
        self,
        send: Send | None = None,
        observer: Observer | None = None,
        *,
        recovery: RecoveryStats | None = None,
        clock: Callable[[], float] | None = None,
    ) -> None:
        self._observer = observer or Observer()
        self.recovery = recovery or RecoveryStats()
        self.latest: Stats | None = None
        """The last answer of the present engine to any query."""
        self.now = clock or WallClock().now
        self._start_rate = StartRate(self.now)
        self._send = send
        self._epoch = -1 if send is None else 0
        self._ids = itertools.count(1)
        self._open: dict[int, _OpenRequest] = {}
        self._quarantine = Quarantine()
        self._queries = Queries()
        self.adapters = AdapterBook(self.ask, self.tell)
        self._died_at: float | None = None
        """When the last engine died; None again once a request has continued."""
        self._is_watched = False
        """Engines report their steps."""
        self._closed_reason: str | None = None
        self._refusal: str | None = None
        """Why requests are refused while no engine runs; None: they wait for the next one."""
        self.idle_since: float | None = self.now()
        """When the last open request ended; None while one is open."""
        self.changed = asyncio.Event()
        """Set when the first request came or the last one ended. The one who waits for it clears it."""

    @property
    def num_open(self) -> int:
        """Requests that have neither ended nor been aborted."""
        return len(self._open)

    @property
    def has_engine(self) -> bool:
        return self._send is not None

    def open_requests(self) -> list[OpenRequest]:
        """Return the requests that have neither ended nor been aborted."""
        return [
            OpenRequest(request_id, each.request.arrived, len(each.request.prompt), len(each.output_ids))
            for request_id, (_, each) in self._open.items()
        ]

    def watch_steps(self, is_on: bool) -> None:
        """Let the engine, and those after it, report their steps to the observer, or no longer."""
        self._is_watched = is_on
        self.tell(WatchSteps(is_on))

    def attach(self, send: Send, epoch: int) -> None:
        """Use a new engine: send it the open requests, oldest first. Messages of earlier engines are dropped.

        Args:
            epoch: the engine's number, larger than that of any engine before.
        """
        assert epoch > self._epoch, f"engine {epoch} after engine {self._epoch}"
        self._send, self._epoch = send, epoch
        if self._is_watched:
            send(WatchSteps(True))
        self._observer.serving(True)
        self._set_idle()  # it is not unloaded before it had time to serve
        self._send_admitted()

    def rest(self, refusal: str | None) -> None:
        """Let go of an engine that is ended on purpose, while no request is open.

        Args:
            refusal: why requests are refused until `await_engine`; None: they wait for the next engine.
        """
        assert not self._open, "an engine with requests is needed"
        self._send = self.latest = None
        self._refusal = refusal
        self._observer.serving(False)
        self._queries.fail(EngineGone("the engine sleeps"))

    def await_engine(self) -> None:
        """Take requests for the next engine."""
        self._refusal = None

    def detach(self, how: str, in_flight: Collection[int]) -> None:
        """Keep the requests of an engine that died for the next one, except a request that certainly killed it.

        Args:
            how: how it ended, in words that follow "it".
            in_flight: ids of the requests in its unfinished steps, as far as they are known.
        """
        self._send = self.latest = None
        self._died_at = self.now()
        self._observer.serving(False)
        self._queries.fail(EngineGone(NO_ENGINE))
        culprit = self._quarantine.engine_died(in_flight)
        if culprit is not None:
            self.give_up(culprit, f"the engine died while it worked on this request alone: it {how}")

    def give_up(self, request_id: int, error: str) -> None:
        """End a request that cannot be continued, if it is open."""
        entry = self._open.get(request_id)
        if entry is None:
            return
        self.recovery.ended_requests += 1
        self.dispatch([Output(request_id, len(entry.delivery.output_ids), (), 0, FinishReason.ERROR, error)])

    def resend(self, request_id: int) -> None:
        """Send a request again, with what was delivered of it, if it is open: what had worked on it is gone."""
        entry = self._open.get(request_id)
        if entry is None or self._send is None:
            return
        self._died_at = self.now() if self._died_at is None else self._died_at
        self._send_request(entry.delivery, self._send)

    def go_on(self, request_id: int) -> None:
        """Send a request on, with what was delivered of it, if it is open: it has left what had worked on it."""
        entry = self._open.get(request_id)
        if entry is not None:
            self.tell(entry.delivery.message())

    def next_id(self) -> int:
        """Return the id of a new request."""
        return next(self._ids)

    def submit(self, requests: Sequence[Submit], inbox: Inbox | None = None) -> Inbox:
        """Send requests, and return the inbox for their outputs. The caller must `close` it.

        Args:
            requests: with ids of `next_id`.
            inbox: of requests of the same call that were submitted before; None is a new one.

        Raises:
            EngineGone: there will be no other engine, or the server was put to sleep.
        """
        refusal = self._closed_reason or self._refusal
        if refusal is not None:
            raise EngineGone(refusal)
        inbox = Inbox(self) if inbox is None else inbox
        for request in requests:
            request_id = request.request_id
            assert request_id not in self._open, f"request {request_id} is open already"
            inbox.request_ids.append(request_id)
            self._open[request_id] = _OpenRequest(inbox, Delivery.of(request))
            self._set_idle()
            self._quarantine.add(request_id)
            self.adapters.began(request.adapter)
            self._start_rate.arrived()
            self._observer.submitted(request)
        self._send_admitted()
        return inbox

    async def stats(self) -> Stats:
        """Ask the engine for its `Stats`; it answers between two steps.

        Raises:
            EngineGone: no engine runs, or it ended before it answered.
        """
        return await self._stats(QueryStats)

    async def flush_cache(self) -> Stats:
        """Let the engine forget all cached pages that are not in use, and return its `Stats` after that.

        Raises:
            EngineGone: as `stats`.
        """
        return await self._stats(FlushCache)

    def retry_after(self) -> int:
        """Return the seconds after which a request that is refused now should be sent again."""
        return self._start_rate.retry_after()

    async def _stats(self, query: type[QueryStats] | type[FlushCache]) -> Stats:
        answer = await self.ask(query)
        assert isinstance(answer, Stats), f"{answer} to {query}"
        return answer

    async def ask(self, query: Callable[[int], FromServer]) -> Answer:
        """Send a message that the engine answers between two steps, and return the answer.

        Args:
            query: makes the message, of its number.

        Raises:
            EngineGone: as `stats`.
        """
        if self._send is None:
            raise EngineGone(self._closed_reason or NO_ENGINE)
        query_id = self.next_id()
        return await self._queries.ask(self._send, query_id, query(query_id))

    def tell(self, message: FromServer) -> None:
        """Send a message that is not answered; nothing happens without an engine."""
        if self._send is not None:
            self._send(message)

    def deliver(self, frame: Delivered, epoch: int = 0) -> None:
        """Handle a message from the engine of this epoch, unless another engine has replaced it.

        Raises:
            OutputOrderError: a message before it was lost.
        """
        if epoch != self._epoch or self._send is None:
            return
        if isinstance(frame, Outputs):
            self.dispatch(frame.outputs)
            return
        if isinstance(frame, StepsSeen):
            self._observer.stepped(frame)
            return
        assert not isinstance(frame, KvEvents), "events of pages go elsewhere"
        if isinstance(frame, Stats):
            self.latest = frame
        self._queries.answered(frame)

    def dispatch(self, outputs: Sequence[Output]) -> None:
        """Put the outputs of a step into the inboxes of their requests. Outputs of closed requests are dropped.

        Raises:
            OutputOrderError: an output before them was lost.
        """
        self._observer.received(outputs)
        for output in outputs:
            entry = self._open.get(output.request_id)
            if entry is None:
                continue
            inbox, delivery = entry
            inbox.put(delivery.add(output))
            if not delivery.has_output:
                delivery.has_output = True
                has_failed = output.finish_reason is not None and output.finish_reason.is_failure
                (self._start_rate.left if has_failed else self._start_rate.started)()
            if output.token_ids or output.embedding:
                self._got_token(output.request_id, delivery)
            if output.finish_reason is not None:
                self._remove(output.request_id)
        self._send_admitted()

    def abort(self, request_id: int, reason: FinishReason) -> None:
        """End a request here and at the engine, if it is open. None of its outputs is delivered any more."""
        entry = self._open.get(request_id)
        if entry is None:
            return
        self._observer.ended(request_id, reason)
        if not entry.delivery.has_output:
            self._start_rate.left()
        self._remove(request_id)
        self.tell(Abort(request_id, reason))
        self._send_admitted()

    def fail(self, message: str) -> None:
        """Close the client: every open inbox and query, and every later call, raises `EngineGone`."""
        self._closed_reason, self._send = message, None
        inboxes = {entry.inbox for entry in self._open.values()}
        for request_id in list(self._open):
            self._observer.ended(request_id, FinishReason.ERROR)
            self._remove(request_id)
        for inbox in inboxes:
            inbox.put(EngineGone(message))
        self._queries.fail(EngineGone(message))

    def _send_admitted(self) -> None:
        """Send the requests that may enter the engine now."""
        if self._send is None:
            return
        for request_id in self._quarantine.admit():
            self._send_request(self._open[request_id].delivery, self._send)

    def _send_request(self, delivery: Delivery, send: Send) -> None:
        """Send a request, for the first time or again."""
        if delivery.times_sent:
            self.recovery.replayed_requests += 1
            self.recovery.replayed_tokens += len(delivery.output_ids)
        message = delivery.message()
        delivery.times_sent += 1
        send(message)

    def _got_token(self, request_id: int, delivery: Delivery) -> None:
        self._quarantine.got_token(request_id)
        if self._died_at is not None and delivery.times_sent > 1:
            self.recovery.resumed(self.now() - self._died_at)
            self._died_at = None

    def _remove(self, request_id: int) -> None:
        request = self._open.pop(request_id).delivery.request
        self._quarantine.remove(request_id)
        self.adapters.ended(request.adapter)
        self._set_idle()

    def _set_idle(self) -> None:
        was_idle, is_idle = self.idle_since is not None, not self._open
        self.idle_since = self.now() if is_idle else None
        if was_idle != is_idle:
            self.changed.set()


class Inbox:
    """Receives the outputs of the requests of one HTTP call."""

    def __init__(self, client: EngineClient) -> None:
        self.request_ids: list[int] = []
        self._client = client
        self._queue: asyncio.Queue[Output | EngineGone | None] = asyncio.Queue()
        self._is_behind = False
        """More outputs had arrived than were taken."""

    def nudge(self) -> None:
        """Let a waiting `get` return, without an output."""
        if self._queue.empty():
            self._queue.put_nowait(None)

    def put(self, item: Output | EngineGone) -> None:
        self._queue.put_nowait(item)

    async def get(self) -> list[Output]:
        """Wait for at least one output or a nudge, and return the outputs that have arrived, `MAX_TOGETHER` at most.

        Raises:
            EngineGone: the engine ended before the requests did.
        """
        if self._is_behind:
            await asyncio.sleep(0)  # a client that was slow may have thousands waiting
        found = [await self._queue.get()]
        while not self._queue.empty() and len(found) < MAX_TOGETHER:
            found.append(self._queue.get_nowait())
        self._is_behind = not self._queue.empty()
        items = [item for item in found if item is not None]
        outputs = [item for item in items if isinstance(item, Output)]
        if items and not outputs:
            (gone,) = items
            assert isinstance(gone, EngineGone)
            raise gone
        if len(outputs) < len(items):  # deliver the outputs first, and raise at the next call
            self._queue.put_nowait(items[-1])
        return outputs

    def close(self) -> None:
        """Abort the requests that have not ended, those of a call of thousands in parts of `MAX_TOGETHER`."""
        for request_id in self.request_ids[:MAX_TOGETHER]:
            self._client.abort(request_id, FinishReason.ABORT)
        del self.request_ids[:MAX_TOGETHER]
        if self.request_ids:
            asyncio.get_running_loop().call_soon(self.close)

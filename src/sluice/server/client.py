"""The engine as the server's routes see it: submit requests, read what comes out, abort.

Lives in the event loop and knows no socket: it is given a function that sends, and told what arrives.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Sequence
from typing import NamedTuple

from sluice.engine.clock import WallClock
from sluice.engine.messages import Abort, FlushCache, Message, QueryStats, Stats, Submit
from sluice.server.pace import Pace
from sluice.server.watch import NullWatch, Watch
from sluice.types import FinishReason, Output, SamplingParams
from sluice.wire import Outputs


class EngineGone(RuntimeError):
    """The engine cannot serve: it ended, or the server is shutting it down."""


class NewRequest(NamedTuple):
    """A checked request that has no id yet; the fields are those of `Submit`."""

    prompt: tuple[int, ...]
    sampling: SamplingParams
    """Resolved."""
    sample_index: int = 0
    extra_key: str = ""
    priority: int = 0
    begin_by: float | None = None
    end_by: float | None = None

    def submit(self, request_id: int) -> Submit:
        return Submit(
            request_id,
            self.prompt,
            self.sampling,
            self.sample_index,
            self.extra_key,
            self.priority,
            begin_by=self.begin_by,
            end_by=self.end_by,
        )


class EngineClient:
    """Owns the request ids and hands each output to whoever asked for it.

    Args:
        send: takes a message to the engine.
        watch: is told of what passes; None is nobody.
    """

    def __init__(self, send: Callable[[Message], None], watch: Watch | None = None) -> None:
        self._send = send
        self._watch = NullWatch() if watch is None else watch
        self.latest: Stats | None = None
        """The last answer of the engine, whoever asked."""
        self.now = WallClock().now
        """Seconds, as the engine counts them."""
        self._pace = Pace(self.now)
        self._silent: set[int] = set()
        """Open requests of which nothing has come yet."""
        self._ids = itertools.count(1)
        self._open: dict[int, Inbox] = {}
        self._queries: dict[int, asyncio.Future[Stats]] = {}
        self._gone: str | None = None

    @property
    def num_open(self) -> int:
        """Requests whose end has neither arrived nor been asked for."""
        return len(self._open)

    def submit(self, requests: Sequence[NewRequest]) -> Inbox:
        """Send requests and open the inbox for their outputs; whoever holds it must `close` it.

        Raises:
            EngineGone: no engine to send to.
        """
        if self._gone is not None:
            raise EngineGone(self._gone)
        inbox = Inbox(self, [next(self._ids) for _ in requests])
        for request_id, request in zip(inbox.request_ids, requests, strict=True):
            self._open[request_id] = inbox
            self._silent.add(request_id)
            self._pace.came()
            message = request.submit(request_id)
            self._watch.submitted(message)
            self._send(message)
        return inbox

    async def stats(self) -> Stats:
        """Ask the engine how it stands; it answers between two steps.

        Raises:
            EngineGone: no engine to ask, or it ended before it answered.
        """
        return await self._ask(QueryStats)

    async def flush_cache(self) -> Stats:
        """Let the engine forget every cached page that nobody uses, and say how it stands then.

        Raises:
            EngineGone: as `stats`.
        """
        return await self._ask(FlushCache)

    def retry_after(self) -> int:
        """Seconds after which a request that is refused now should be sent again."""
        return self._pace.retry_after()

    async def _ask(self, query: type[QueryStats] | type[FlushCache]) -> Stats:
        if self._gone is not None:
            raise EngineGone(self._gone)
        query_id = next(self._ids)
        self._queries[query_id] = asyncio.get_running_loop().create_future()
        self._send(query(query_id))
        try:
            return await self._queries[query_id]
        finally:
            self._queries.pop(query_id, None)

    def deliver(self, frame: Outputs | Stats) -> None:
        """Hand out what the engine sent."""
        match frame:
            case Outputs(outputs):
                self.dispatch(outputs)
            case Stats(query_id):
                self.latest = frame
                query = self._queries.get(query_id)
                if query is not None and not query.done():
                    query.set_result(frame)

    def dispatch(self, outputs: Sequence[Output]) -> None:
        """Hand out the outputs of a step. Those of requests that nobody waits for any more are dropped."""
        self._watch.received(outputs)
        for output in outputs:
            inbox = self._open.get(output.request_id)
            if inbox is None:
                continue
            if output.request_id in self._silent:
                self._first(output)
            if output.finish_reason is not None:
                del self._open[output.request_id]
            inbox.put(output)

    def _first(self, output: Output) -> None:
        self._silent.discard(output.request_id)
        if output.finish_reason is not None and output.finish_reason.is_failure:
            self._pace.left()
        else:
            self._pace.began()

    def abort(self, request_id: int, reason: FinishReason) -> None:
        """End a request that is still open, at the engine and here: nothing of it arrives any more."""
        if self._open.pop(request_id, None) is None:
            return
        self._watch.ended(request_id, reason)
        if request_id in self._silent:
            self._silent.discard(request_id)
            self._pace.left()
        if self._gone is None:
            self._send(Abort(request_id, reason))

    def fail(self, message: str) -> None:
        """There is no engine any more: every open inbox and query and every later one raises `EngineGone`."""
        self._gone = message
        for request_id in self._open:
            self._watch.ended(request_id, FinishReason.ERROR)
        inboxes = set(self._open.values())
        self._open.clear()
        for inbox in inboxes:
            inbox.put(EngineGone(message))
        for query in self._queries.values():
            if not query.done():
                query.set_exception(EngineGone(message))


class Inbox:
    """Where the outputs of the requests of one HTTP call arrive."""

    def __init__(self, client: EngineClient, request_ids: Sequence[int]) -> None:
        self.request_ids = tuple(request_ids)
        self._client = client
        self._queue: asyncio.Queue[Output | EngineGone] = asyncio.Queue()

    def put(self, item: Output | EngineGone) -> None:
        self._queue.put_nowait(item)

    async def get(self) -> list[Output]:
        """Everything that has arrived, at least one output.

        Raises:
            EngineGone: the engine ended before the requests did.
        """
        items = [await self._queue.get()]
        while not self._queue.empty():
            items.append(self._queue.get_nowait())
        outputs = [item for item in items if isinstance(item, Output)]
        if not outputs:
            (gone,) = items
            assert isinstance(gone, EngineGone)
            raise gone
        if len(outputs) < len(items):  # the outputs first, the end at the next call
            self._queue.put_nowait(items[-1])
        return outputs

    def close(self) -> None:
        """Nobody waits any more: abort what has not ended."""
        for request_id in self.request_ids:
            self._client.abort(request_id, FinishReason.ABORT)

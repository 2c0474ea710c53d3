"""The engine as the server's routes see it: submit requests, read what comes out, abort.

It outlives engines. Of every open request it keeps what was asked and what was delivered; that is all it takes to go on
in another engine as if nothing had happened, since a sample is a function of the model, the tokens before it, the seed
and its position. Between two engines requests wait here, new ones too.

Lives in the event loop and knows no socket: it is given a function that sends, and told what arrives.
"""

from __future__ import annotations

import asyncio
import itertools
from array import array
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from sluice.engine.clock import WallClock
from sluice.engine.messages import Abort, FlushCache, Message, QueryStats, Stats, Submit
from sluice.process.pace import Pace
from sluice.process.quarantine import Quarantine
from sluice.process.recovery_stats import RecoveryStats
from sluice.process.watch import NullWatch, Watch
from sluice.process.wire import Outputs
from sluice.types import CachedTokens, FinishReason, Output, SamplingParams

Send = Callable[[Message], None]
NO_ENGINE = "the engine died; another one is started"


class EngineGone(RuntimeError):
    """The engine cannot serve: it ended, or the server is shutting it down."""


class OutOfStep(RuntimeError):
    """The engine says what cannot follow what it said before: something was lost on the way."""


class NewRequest(NamedTuple):
    """A checked request that has no id yet; the fields are those of `Submit`."""

    prompt: tuple[int, ...]
    sampling: SamplingParams
    """Resolved."""
    sample_index: int = 0
    extra_key: str = ""
    priority: int = 0
    start_deadline: float | None = None
    deadline: float | None = None


@dataclass(slots=True, eq=False)
class _Open:
    """A request whose end has neither arrived nor been asked for."""

    request: NewRequest
    inbox: Inbox
    is_silent: bool = True
    """Nothing has come yet."""
    output_ids: array[int] = field(default_factory=lambda: array("i"))
    """Delivered."""
    prompt_logprobs_sent: int = 0
    """Log-probabilities of its prompt that were delivered."""
    cached: CachedTokens | None = None
    """As told first: another engine has another cache, and that is nobody's business."""
    times_sent: int = 0

    def submit(self, request_id: int) -> Submit:
        """The message by which an engine begins it, or goes on with it."""
        request = self.request
        return Submit(
            request_id=request_id,
            prompt=request.prompt,
            sampling=request.sampling,
            sample_index=request.sample_index,
            extra_key=request.extra_key,
            priority=request.priority,
            output_ids=tuple(self.output_ids),
            prompt_logprobs_sent=self.prompt_logprobs_sent,
            start_deadline=request.start_deadline,
            deadline=request.deadline,
            is_resumed=self.times_sent > 0,
        )

    def take(self, output: Output) -> Output:
        """Keep what an output brings, and give it as it is to be delivered.

        Raises:
            OutOfStep: tokens before it are missing, or it repeats some.
        """
        if output.start != len(self.output_ids):
            raise OutOfStep(
                f"request {output.request_id}: tokens from {output.start} on, after {len(self.output_ids)} of them"
            )
        self.output_ids.extend(output.token_ids)
        self.prompt_logprobs_sent += len(output.prompt_logprobs)
        if self.cached is None:
            self.cached = output.cached
        total, host, disk = self.cached
        return output._replace(num_cached_tokens=total, num_host_tokens=host, num_disk_tokens=disk)


class EngineClient:
    """Owns the request ids and hands each output to whoever asked for it.

    Args:
        send: of an engine that is there already, the first.
        watch: is told of what passes; None is nobody.
        recovery: where recoveries are counted.
        clock: seconds, as the engine counts them; None is the wall's.
    """

    def __init__(
        self,
        send: Send | None = None,
        watch: Watch | None = None,
        *,
        recovery: RecoveryStats | None = None,
        clock: Callable[[], float] | None = None,
    ) -> None:
        self._watch = NullWatch() if watch is None else watch
        self.recovery = RecoveryStats() if recovery is None else recovery
        self.latest: Stats | None = None
        """The last answer of the engine that runs, whoever asked."""
        self.now = WallClock().now if clock is None else clock
        """Seconds, as the engine counts them."""
        self._pace = Pace(self.now)
        self._send: Send | None = send
        self._epoch = -1 if send is None else 0
        self._ids = itertools.count(1)
        self._open: dict[int, _Open] = {}
        self._quarantine = Quarantine()
        self._queries: dict[int, asyncio.Future[Stats]] = {}
        self._died_at: float | None = None
        """When the last engine died, until a stream has gone on."""
        self._gone: str | None = None

    @property
    def num_open(self) -> int:
        """Requests whose end has neither arrived nor been asked for."""
        return len(self._open)

    def attach(self, send: Send, epoch: int) -> None:
        """An engine is there: send it what is open, oldest first. Only what it says from now on counts.

        Args:
            epoch: its number, larger than that of any before.
        """
        assert epoch > self._epoch, f"engine {epoch} after engine {self._epoch}"
        self._send, self._epoch = send, epoch
        self._let_in()

    def detach(self, how: str, in_flight: Collection[int]) -> None:
        """The engine died: requests wait for the next one, but for one that it died of beyond doubt.

        Args:
            how: it ended, in words that follow "it".
            in_flight: ids of the requests it was computing for, as far as they are known.
        """
        self._send = self.latest = None
        self._died_at = self.now()
        self._fail_queries(NO_ENGINE)
        guilty = self._quarantine.engine_died(in_flight)
        if guilty is not None:
            self.recovery.ended_requests += 1
            self._end(guilty, f"the engine died while it worked on this request alone: it {how}")

    def submit(self, requests: Sequence[NewRequest]) -> Inbox:
        """Send requests and open the inbox for their outputs; whoever holds it must `close` it.

        Raises:
            EngineGone: no engine will ever be there again.
        """
        if self._gone is not None:
            raise EngineGone(self._gone)
        inbox = Inbox(self, [next(self._ids) for _ in requests])
        for request_id, request in zip(inbox.request_ids, requests, strict=True):
            self._open[request_id] = _Open(request, inbox)
            self._quarantine.opened(request_id)
            self._pace.came()
            self._watch.submitted(self._open[request_id].submit(request_id))
        self._let_in()
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
        if self._send is None:
            raise EngineGone(self._gone or NO_ENGINE)
        query_id = next(self._ids)
        self._queries[query_id] = asyncio.get_running_loop().create_future()
        self._send(query(query_id))
        try:
            return await self._queries[query_id]
        finally:
            self._queries.pop(query_id, None)

    def deliver(self, frame: Outputs | Stats, epoch: int = 0) -> None:
        """Hand out what an engine sent. What comes late, from one that was given up, is dropped.

        Raises:
            OutOfStep: something was lost before it.
        """
        if epoch != self._epoch or self._send is None:
            return
        match frame:
            case Outputs(outputs):
                self.dispatch(outputs)
            case Stats(query_id):
                self.latest = frame
                query = self._queries.get(query_id)
                if query is not None and not query.done():
                    query.set_result(frame)

    def dispatch(self, outputs: Sequence[Output]) -> None:
        """Hand out the outputs of a step. Those of requests that nobody waits for any more are dropped.

        Raises:
            OutOfStep: something was lost before it.
        """
        self._watch.received(outputs)
        for output in outputs:
            entry = self._open.get(output.request_id)
            if entry is None:
                continue
            entry.inbox.put(entry.take(output))
            if entry.is_silent:
                self._first(entry, output)
            if output.token_ids:
                self._got_token(output.request_id, entry)
            if output.finish_reason is not None:
                self._forget(output.request_id)
        self._let_in()

    def _first(self, entry: _Open, output: Output) -> None:
        entry.is_silent = False
        if output.finish_reason is not None and output.finish_reason.is_failure:
            self._pace.left()
        else:
            self._pace.began()

    def abort(self, request_id: int, reason: FinishReason) -> None:
        """End a request that is still open, at the engine and here: nothing of it arrives any more."""
        entry = self._open.get(request_id)
        if entry is None:
            return
        self._watch.ended(request_id, reason)
        if entry.is_silent:
            self._pace.left()
        self._forget(request_id)
        if self._send is not None:
            self._send(Abort(request_id, reason))
            self._let_in()

    def fail(self, message: str) -> None:
        """There is no engine any more: every open inbox and query and every later one raises `EngineGone`."""
        self._gone, self._send = message, None
        inboxes = {entry.inbox for entry in self._open.values()}
        for request_id in list(self._open):
            self._watch.ended(request_id, FinishReason.ERROR)
            self._forget(request_id)
        for inbox in inboxes:
            inbox.put(EngineGone(message))
        self._fail_queries(message)

    def _let_in(self) -> None:
        """Send what may be sent now."""
        if self._send is None:
            return
        for request_id in self._quarantine.let_in():
            entry = self._open[request_id]
            if entry.times_sent:
                self.recovery.replayed_requests += 1
                self.recovery.replayed_tokens += len(entry.output_ids)
            message = entry.submit(request_id)
            entry.times_sent += 1
            self._send(message)

    def _got_token(self, request_id: int, entry: _Open) -> None:
        self._quarantine.got_token(request_id)
        if self._died_at is not None and entry.times_sent > 1:
            self.recovery.resumed(self.now() - self._died_at)
            self._died_at = None

    def _end(self, request_id: int, error: str) -> None:
        entry = self._open[request_id]
        self._watch.ended(request_id, FinishReason.ERROR)
        total, host, disk = entry.cached or CachedTokens()
        start = len(entry.output_ids)
        entry.inbox.put(
            Output(
                request_id,
                start,
                (),
                total,
                FinishReason.ERROR,
                error,
                num_host_tokens=host,
                num_disk_tokens=disk,
            )
        )
        self._forget(request_id)

    def _forget(self, request_id: int) -> None:
        del self._open[request_id]
        self._quarantine.closed(request_id)

    def _fail_queries(self, message: str) -> None:
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

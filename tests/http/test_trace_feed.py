"""`GET /v1/trace`: what subscribers see of requests and steps, and what becomes of those that read too slowly."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import msgspec
import pytest

from serving import Event, Server, run, serving
from shadow_engine import PAGE_SIZE
from sluice.engine.messages import WatchSteps
from sluice.engine.step_watch import StepsSeen
from sluice.http.apis.responses.store import ResponseStore
from sluice.http.app import make_routes
from sluice.http.base.backend import Backend
from sluice.http.base.body import BodyLimits, BodyReader
from sluice.http.base.errors import ApiError
from sluice.http.base.isolation import CacheIsolation
from sluice.http.base.openapi import openapi
from sluice.http.observe.http_metrics import Metrics
from sluice.http.observe.trace_events import (
    DroppedEvent,
    EngineEvent,
    HelloEvent,
    RequestsEvent,
    StepsEvent,
    TracedEnd,
    TraceEvent,
)
from sluice.http.observe.trace_feed import MOST_GATHERED, MOST_SUBSCRIBERS, MOST_WAITING, TraceFeed
from sluice.process.client import EngineClient
from sluice.types import FinishReason, Occupancy, Output

EMPTY = Occupancy(0, 0, 0, 0, 1)


class Subscriber:
    """A client of the trace, whose events a test takes one by one."""

    def __init__(self, server: Server, *, reads: bool = True) -> None:
        self.status = 0
        self.is_over = False
        self.is_sent = asyncio.Event()
        """The server has sent something, although it may not have been read."""
        self._reads = asyncio.Event()
        self._left = asyncio.Event()
        self._has_asked = False
        self._events: asyncio.Queue[TraceEvent] = asyncio.Queue()
        if reads:
            self._reads.set()
        scope = {
            "type": "http",
            "asgi": {"version": "3.0"},
            "http_version": "1.1",
            "method": "GET",
            "path": "/v1/trace",
            "raw_path": b"/v1/trace",
            "query_string": b"",
            "root_path": "",
            "scheme": "http",
            "headers": [],
            "server": ("test", 80),
            "client": ("test", 1),
        }
        self.call = asyncio.create_task(server.app(scope, self._receive, self._send))

    async def _receive(self) -> Event:
        if not self._has_asked:
            self._has_asked = True
            return {"type": "http.request", "body": b"", "more_body": False}
        await self._left.wait()
        return {"type": "http.disconnect"}

    async def _send(self, message: Event) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]
            return
        self.is_sent.set()
        await self._reads.wait()
        for block in message["body"].decode().split("\n\n"):
            if block.startswith("data: "):
                self._events.put_nowait(msgspec.json.decode(block[6:], type=TraceEvent))
        self.is_over = not message["more_body"]

    async def next(self) -> TraceEvent:
        return await self._events.get()

    async def until_idle(self, requests: int) -> list[TraceEvent]:
        """The events until so many requests have ended, and the engine was seen with none."""
        found: list[TraceEvent] = []
        ended, running = 0, 1
        while ended < requests or running:
            event = await self.next()
            found.append(event)
            ended += len(event.ended) if isinstance(event, RequestsEvent) else 0
            running = event.pool.running if isinstance(event, StepsEvent) else running
        return found

    def read(self) -> None:
        self._reads.set()

    async def leave(self) -> None:
        self._left.set()
        await self.call


@asynccontextmanager
async def watching() -> AsyncIterator[tuple[Server, Subscriber]]:
    async with serving(page=True) as server:
        subscriber = Subscriber(server)
        try:
            yield server, subscriber
        finally:
            await subscriber.leave()


def test_requests_and_steps_are_seen_and_no_token() -> None:
    """What the page draws; and what another client wrote must not be in it."""

    async def test() -> None:
        async with watching() as (server, subscriber):
            hello = await subscriber.next()
            assert isinstance(hello, HelloEvent)
            assert (hello.model, hello.page_size, hello.is_serving, hello.requests) == ("shadow", PAGE_SIZE, True, [])
            assert hello.server == "this server", "by which a client knows that its times go on"
            answer = await server.post("/v1/completions", prompt="secret" * 7, max_tokens=5)
            events = await subscriber.until_idle(1)
            assert answer.headers["x-sluice-engine-request"] == "1", "by which a client finds its request here"
            requests = [event for event in events if isinstance(event, RequestsEvent)]
            (arrived,) = [each for event in requests for each in event.arrived]
            (ended,) = [each for event in requests for each in event.ended]
            assert (arrived.id, arrived.prompt_tokens) == (1, 42)
            assert (ended.id, ended.reason, ended.output_tokens) == (1, "length", 5)
            steps = [step for event in events if isinstance(event, StepsEvent) for step in event.steps]
            chunks = [(chunk.start, chunk.length, chunk.samples) for step in steps for chunk in step.chunks]
            assert chunks == [(0, 32, False), (32, 10, True)]
            assert arrived.arrived <= steps[0].began <= steps[-1].known <= events[-1].now
            assert all(event.now >= hello.now for event in events)
            assert b"secret" not in b"".join(map(msgspec.json.encode, events))

    run(test)


def test_one_who_comes_later_sees_what_is_open() -> None:
    async def test() -> None:
        async with serving(page=True) as server:
            server.hold()
            running = asyncio.create_task(server.post("/v1/completions", prompt="abc", max_tokens=100))
            await server.arrived(1)  # each message may be a step: three tokens were over before the trace was asked for
            subscriber = Subscriber(server)
            hello = await subscriber.next()
            assert isinstance(hello, HelloEvent)
            assert [(each.id, each.prompt_tokens) for each in hello.requests] == [(1, 3)]
            server.let_go()
            await subscriber.until_idle(1)
            await running
            await subscriber.leave()

    run(test)


def test_a_request_whose_client_leaves_is_seen_to_end() -> None:
    async def test() -> None:
        async with watching() as (server, subscriber):
            server.hold()
            call = asyncio.create_task(server.post("/v1/completions", prompt="abc", max_tokens=100))
            await server.arrived(1)
            call.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await call
            while server.client.num_open:
                await asyncio.sleep(0)
            server.let_go()
            ends: list[TracedEnd] = []
            while not ends:
                event = await subscriber.next()
                ends += event.ended if isinstance(event, RequestsEvent) else []
            await server.complete(prompt="b", max_tokens=1)
            for event in await subscriber.until_idle(1):
                ends += event.ended if isinstance(event, RequestsEvent) else []
            assert [(each.reason, each.output_tokens) for each in ends] == [("abort", None), ("length", 1)]

    run(test)


def test_the_engine_is_asked_only_while_somebody_watches() -> None:
    """A report costs the engine time in every step."""

    async def test() -> None:
        async with serving(page=True) as server:

            def asked() -> list[bool]:
                return [message.is_on for message in server.sent if isinstance(message, WatchSteps)]

            await server.complete(prompt="a", max_tokens=1)
            assert asked() == []
            first, second = Subscriber(server), Subscriber(server)
            await first.next()
            await second.next()
            assert asked() == [True]
            await first.leave()
            assert asked() == [True]
            await second.leave()
            assert asked() == [True, False]
            head = await server.http.head("/v1/trace")
            assert (head.status_code, head.headers["content-type"]) == (200, "text/event-stream; charset=utf-8")
            assert asked() == [True, False]

    run(test)


def test_one_who_reads_too_slowly_is_dropped() -> None:
    """What waits for it would grow for ever. The others notice nothing."""

    async def test() -> None:
        async with watching() as (server, subscriber):
            await subscriber.next()
            slow = Subscriber(server, reads=False)
            feed = server.feed
            assert feed is not None
            await slow.is_sent.wait()
            for _ in range(MOST_WAITING):
                feed.serving(True)
                assert isinstance(await subscriber.next(), EngineEvent)
            assert feed.num_subscribers == 2
            for _ in range(2):
                feed.serving(True)
                await subscriber.next()
            assert feed.num_subscribers == 1, "the slow one is forgotten"
            slow.read()
            await slow.call
            assert slow.is_over
            assert isinstance(await slow.next(), HelloEvent)
            assert isinstance(await slow.next(), DroppedEvent), "it is told, and may come back"

    run(test)


def test_the_last_one_is_dropped_in_the_middle_of_a_report() -> None:
    """What comes behind it in a message from the engine is dropped without an error, which would end an engine."""
    ends = [Output(number, 0, (1,), 0, FinishReason.LENGTH) for number in range(MOST_GATHERED + 9)]

    async def test() -> None:
        for bring in (lambda feed: feed.serving(True), lambda feed: feed.stepped(StepsSeen((), EMPTY))):
            feed, client = TraceFeed(lambda: 0.0, ""), EngineClient()
            feed.subscribe(client, "m", 1)
            for _ in range(MOST_WAITING - 1):
                feed.serving(True)
            feed.received(ends[:1])
            bring(feed)
            assert feed.num_subscribers == 0
            feed.subscribe(client, "m", 1)
            for _ in range(MOST_WAITING - 1):
                feed.serving(True)
            feed.received(ends)
            assert feed.num_subscribers == 0

    run(test)


def test_there_are_not_more_subscribers_than_may_be() -> None:
    async def test() -> None:
        async with serving(page=True) as server:
            subscribers = [Subscriber(server) for _ in range(MOST_SUBSCRIBERS)]
            for each in subscribers:
                await each.next()
            refused = await server.http.get("/v1/trace")
            assert (refused.status_code, refused.json()["error"]["code"]) == (503, "too_many_subscribers")
            assert refused.headers["retry-after"]
            await subscribers.pop().leave()
            later = Subscriber(server)
            await later.next()
            for each in [*subscribers, later]:
                await each.leave()

    run(test)


def test_a_server_that_ends_waits_for_no_subscriber() -> None:
    """A stream without an end would keep a server that drains for half a minute."""

    async def test() -> None:
        async with serving(page=True) as server:
            subscriber = Subscriber(server)
            await subscriber.next()
            server.backend.drain()
            await subscriber.call
            assert subscriber.is_over
            refused = await server.http.get("/v1/trace")
            assert refused.status_code == 503

    run(test)


def test_the_trace_goes_on_with_the_next_engine() -> None:
    """The page says that the engine ended, and shows the next one without being opened again."""

    async def test() -> None:
        async with watching() as (server, subscriber):
            await subscriber.next()
            server.client.detach("was killed", ())
            sent: list[object] = []
            server.client.attach(sent.append, 1)
            states = [await subscriber.next() for _ in range(2)]
            assert [each.is_serving for each in states if isinstance(each, EngineEvent)] == [False, True]
            assert sent == [WatchSteps(True)]

    run(test)


@pytest.mark.parametrize("page", [True, False])
def test_it_is_there_with_the_page_alone(page: bool) -> None:
    async def test() -> None:
        async with serving(page=page, api_keys={"sesame"}) as server:
            assert (await server.http.get("/v1/trace")).status_code == 401, "the lengths of others' prompts are in it"
            answer = await server.http.head("/v1/trace", headers={"authorization": "Bearer sesame"})
            assert answer.status_code == (200 if page else 404)
            completed = await server.http.post(
                "/v1/completions", json={"prompt": "a"}, headers={"authorization": "Bearer sesame"}
            )
            assert ("x-sluice-engine-request" in completed.headers) == page

    run(test)


def test_a_silent_stream_shows_that_it_lives() -> None:
    """A proxy closes a connection on which nothing comes."""
    from sluice.http.observe.trace_routes import COMMENT, _events

    async def test() -> None:
        feed, client = TraceFeed(lambda: 0.0, ""), EngineClient()
        rest = _events(feed, feed.subscribe(client, "m", 1), 0.001)
        assert (await anext(rest)).startswith(b"data: ")
        assert await anext(rest) == COMMENT
        await rest.aclose()
        assert feed.num_subscribers == 0

    run(test)


def test_its_events_are_described() -> None:
    reader = BodyReader(BodyLimits())
    routes = make_routes(
        Backend(),
        reader,
        CacheIsolation(),
        Metrics(),
        lambda: 0.0,
        ResponseStore(0, 0),
        feed=TraceFeed(lambda: 0.0, ""),
    )
    document = openapi(routes.operations, "0")
    described = document["paths"]["/v1/trace"]["get"]["responses"]["200"]["content"]
    assert [*described] == ["text/event-stream"]
    assert {"HelloEvent", "StepsEvent", "TracedStep", "TracedChunk"} <= {*document["components"]["schemas"]}


def test_too_many_are_refused_before_anything_is_asked() -> None:
    sent: list[object] = []
    feed, client = TraceFeed(lambda: 0.0, ""), EngineClient(sent.append)

    async def test() -> None:
        for _ in range(MOST_SUBSCRIBERS):
            feed.subscribe(client, "m", 1)
        with pytest.raises(ApiError, match=str(MOST_SUBSCRIBERS)):
            feed.subscribe(client, "m", 1)
        feed.close()
        assert sent == [WatchSteps(True), WatchSteps(False)]

    run(test)

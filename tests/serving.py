"""A whole server in this process: the real routes, client, sockets and engine loop over the shadow model.

The engine runs in a thread at the other end of real sockets; only the model and its process are missing. Tokens are
bytes: id i is the byte i, and the vocabulary of the shadow model ends below 128, so that every text is ASCII.
"""

from __future__ import annotations

import asyncio
import json
import os
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, MutableMapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, Protocol

import httpx
from starlette.applications import Starlette

from held_link import HeldLink
from shadow_engine import OPTIONS, VOCAB, limits_of, resolution, shadow_engine
from sluice.assembly.explain import explain
from sluice.config import ServerConfig
from sluice.engine.clock import WallClock
from sluice.engine.engine import Engine
from sluice.engine.messages import Abort, Message, Shutdown, Stats, Submit
from sluice.engine.step_watch import StepsSeen, StepWatch
from sluice.http.apis.responses.store import ResponseStore
from sluice.http.app import create_app
from sluice.http.base.backend import Backend, Service
from sluice.http.base.body import BodyLimits
from sluice.http.base.calls import Listener
from sluice.http.base.isolation import CacheIsolation
from sluice.http.base.origins import Origins
from sluice.http.observe.http_metrics import Metrics
from sluice.http.observe.trace_feed import TraceFeed
from sluice.process.client import EngineClient
from sluice.process.engine_state import EngineState
from sluice.process.observer import Observers
from sluice.process.socket_folder import SocketFolder
from sluice.process.wire import Outputs
from sluice.process.zmq_link import ZmqChannel, ZmqLink
from sluice.testing import Faults, oracle
from sluice.text.chat_template import ChatTemplate
from sluice.text.tokenizer import Tokenizer
from sluice.types import SamplingDefaults, SamplingParams
from sluice.types.footprint import Footprint
from tokenizer_makers import byte_tokenizer

Event = MutableMapping[str, Any]
"""What an ASGI application receives and sends."""
MODEL = "shadow"
MEMORY = Footprint(weights_bytes=5, device_kv_bytes=7, pool_bytes=7)
PATIENCE = 120.0
"""Seconds after which something that should have happened long ago fails the test."""
TEMPLATE = (
    "{% for message in messages %}{{ message.role }}: {{ message.content }}\n{% endfor %}"
    "{% if messages[-1].content == 'refuse me' %}{{ raise_exception('no such talk') }}{% endif %}"
)
CHAT_TEMPLATE = ChatTemplate(TEMPLATE, {})
"""The servers of all tests share its process, which the first chat starts."""


def expected_text(prompt: str | Sequence[int], max_tokens: int, *, seed: int = 0) -> str:
    """What the shadow model must answer."""
    ids = list(prompt.encode()) if isinstance(prompt, str) else prompt
    return bytes(oracle(ids, SamplingParams(max_tokens=max_tokens, seed=seed), vocab_size=VOCAB)).decode()


@dataclass
class Server:
    """What a test may touch."""

    app: Starlette
    http: httpx.AsyncClient
    backend: Backend
    client: EngineClient
    engine: Engine
    channel: ZmqChannel
    sent: list[Message]
    """What the client sent to the engine."""
    metrics: Metrics
    held: HeldLink
    feed: TraceFeed | None
    """None without the page."""

    def hold(self) -> None:
        """From now on the engine makes one step for each arrival of messages (see `HeldLink`)."""
        self.held.is_held = True

    def let_go(self) -> None:
        self.held.is_held = False
        self.channel.send(Abort(0))  # wakes it

    async def arrived(self, count: int) -> None:
        """Wait until the engine has been sent so many requests and has seen them all."""
        while sum(isinstance(message, Submit) for message in self.sent) < count:
            await asyncio.sleep(0)
        await self.client.stats()

    def aborts(self) -> list[Abort]:
        return [message for message in self.sent if isinstance(message, Abort)]

    async def post(self, path: str, **body: Any) -> httpx.Response:
        return await self.http.post(path, json=body)

    async def complete(self, **body: Any) -> dict[str, Any]:
        """A completion that must succeed."""
        answer = await self.post("/v1/completions", **body)
        assert answer.status_code == 200, answer.text
        content: dict[str, Any] = answer.json()
        return content

    async def events(self, path: str, **body: Any) -> list[dict[str, Any]]:
        """The events of a stream that must end with [DONE], which is left out."""
        answer = await self.post(path, stream=True, **body)
        assert answer.status_code == 200, answer.text
        assert answer.headers["content-type"].startswith("text/event-stream")
        *found, done = parse_events(answer.text)
        assert done == "[DONE]"
        return [json.loads(data) for data in found]


class HasApp(Protocol):
    """What a call can be made to."""

    app: Starlette


class Caller:
    """One HTTP call made by hand, so that it can be watched event by event and left at any moment."""

    def __init__(
        self,
        server: HasApp,
        path: str,
        body: dict[str, Any],
        *,
        headers: Sequence[tuple[bytes, bytes]] = (),
        never: bool = False,
    ) -> None:
        """With `never` the body does not come, as if it were on its way for ever."""
        self.sent: asyncio.Queue[Event] = asyncio.Queue()
        self._left = asyncio.Event()
        self._body: list[bytes] = [] if never else [json.dumps(body).encode()]
        scope = {
            "type": "http",
            "asgi": {"version": "3.0", "spec_version": "2.3"},
            "http_version": "1.1",
            "method": "POST",
            "path": path,
            "raw_path": path.encode(),
            "query_string": b"",
            "root_path": "",
            "scheme": "http",
            "headers": [*headers],
            "server": ("test", 80),
            "client": ("test", 1),
        }
        self.call = asyncio.create_task(server.app(scope, self._receive, self._send))

    async def _receive(self) -> Event:
        if self._body:
            return {"type": "http.request", "body": self._body.pop(), "more_body": False}
        await self._left.wait()
        return {"type": "http.disconnect"}

    async def _send(self, message: Event) -> None:
        await self.sent.put(message)

    def leave(self) -> None:
        self._left.set()


def parse_events(text: str) -> list[str]:
    """The data of each server-sent event."""
    *blocks, rest = text.split("\n\n")
    assert rest == "", "a stream ends with an empty line"
    assert all(block.startswith("data: ") and "\n" not in block for block in blocks), blocks
    return [block.removeprefix("data: ") for block in blocks]


@asynccontextmanager
async def serving(
    *,
    chat: bool = True,
    faults: Faults | None = None,
    max_body_bytes: int = 10_000,
    strict_fields: bool = False,
    max_body_seconds: float = PATIENCE,
    api_keys: Collection[str] = (),
    hosts: Collection[str] | None = None,
    origins: Origins | None = None,
    isolation: CacheIsolation | None = None,
    listeners: Sequence[Listener] = (),
    sampling_defaults: SamplingDefaults | None = None,
    responses: ResponseStore | None = None,
    page: bool = False,
    **options: Any,
) -> AsyncIterator[Server]:
    """A server that is ready, with these options of the engine changed.

    On leaving, the engine must have nothing left: no request, no page held.
    """
    folder = SocketFolder.fresh()
    channel, link = ZmqChannel(folder), ZmqLink(folder)
    held = HeldLink(link)
    engine = shadow_engine(held, faults, **options)
    engine.watch = StepWatch(link.send_frame)
    thread = threading.Thread(target=engine.run, name="engine")
    thread.start()
    sent: list[Message] = []

    def send(message: Message) -> None:
        sent.append(message)
        channel.send(message)

    metrics = Metrics()
    metrics.model = MODEL
    feed = TraceFeed(WallClock().now, "this server") if page else None
    client = EngineClient(send, metrics if feed is None else Observers(metrics, feed))
    backend = Backend(EngineState())
    backend.engine.serving(os.getpid(), {})
    tokenizer = Tokenizer(byte_tokenizer(), chat_template=CHAT_TEMPLATE if chat else None)
    chosen = resolution(**options)
    settings = explain(ServerConfig(), chosen.config, chosen.reasons, {*OPTIONS, *options})
    limits = limits_of(chosen.config)
    defaults = sampling_defaults or SamplingDefaults()
    backend.open(Service((MODEL,), tokenizer, limits, frozenset(), client, settings, MEMORY, defaults))
    limits = BodyLimits(max_body_bytes, max_body_seconds)
    app = create_app(
        backend,
        body_limits=limits,
        strict_fields=strict_fields,
        api_keys=api_keys,
        hosts=hosts,
        origins=origins,
        isolation=isolation,
        clock=lambda: 1234.5,
        metrics=metrics,
        listeners=listeners,
        responses=ResponseStore(16, 1 << 20) if responses is None else responses,
        feed=feed,
    )
    delivering = asyncio.create_task(_deliver(channel, client))
    transport = httpx.ASGITransport(app, raise_app_exceptions=False)
    try:
        async with httpx.AsyncClient(transport=transport, base_url="http://test") as http:
            yield Server(app, http, backend, client, engine, channel, sent, metrics, held, feed)
        assert client.num_open == 0, "a request was left open"
    finally:
        held.is_held = False
        channel.send(Shutdown())
        await asyncio.to_thread(thread.join, PATIENCE)
        delivering.cancel()
        await asyncio.wait({delivering})
        link.close()
        channel.close()
        folder.remove()
    assert not thread.is_alive(), "the engine does not end"
    assert metrics.num_open == 0, "a request is timed for ever"
    assert engine.is_idle, "the engine still works on a request that no client waits for"
    kv = engine.scheduler.state.kv
    assert kv.available == kv.num_pages, "pages were not given back"


async def _deliver(channel: ZmqChannel, client: EngineClient) -> None:
    while True:
        frame = await channel.receive()
        assert isinstance(frame, Outputs | Stats | StepsSeen)
        client.deliver(frame)


def run(test: Callable[[], Awaitable[None]]) -> None:
    """Run an async test in a loop of its own."""
    asyncio.run(asyncio.wait_for(test(), PATIENCE))

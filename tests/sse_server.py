"""A server of OpenAI's streaming API written by hand, so that a test says when each byte leaves it."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from typing import Any

MODELS = {"object": "list", "data": [{"id": "toy"}]}


@dataclass
class Call:
    """One request and the way back."""

    path: str
    headers: dict[str, str]
    body: dict[str, Any]
    writer: asyncio.StreamWriter
    number: int
    chunked: bool = True

    async def raw(self, data: bytes) -> None:
        self.writer.write(data)
        await self.writer.drain()

    async def head(self, status: int = 200, content_type: str = "text/event-stream", extra: str = "") -> None:
        coding = "Transfer-Encoding: chunked\r\n" if self.chunked else ""
        await self.raw(f"HTTP/1.1 {status} Any\r\nContent-Type: {content_type}\r\n{coding}{extra}\r\n".encode())

    async def chunk(self, data: bytes) -> None:
        await self.raw(b"%x\r\n%s\r\n" % (len(data), data) if self.chunked else data)

    async def event(self, content: object) -> None:
        data = content if isinstance(content, str) else json.dumps(content)
        await self.chunk(f"data: {data}\n\n".encode())

    async def text(self, text: str, *, finish: str | None = None, **choice: object) -> None:
        await self.event({"choices": [{"index": 0, "text": text, "finish_reason": finish, **choice}]})

    async def end(self, *, completion_tokens: int | None = None, prompt_tokens: int = 7) -> None:
        if completion_tokens is not None:
            usage = {"prompt_tokens": prompt_tokens, "completion_tokens": completion_tokens}
            await self.event({"choices": [], "usage": usage})
        await self.event("[DONE]")
        if self.chunked:
            await self.raw(b"0\r\n\r\n")


Handler = Callable[[Call], Awaitable[None]]


async def stream_at_once(call: Call) -> None:
    """Send `max_tokens` tokens, an event each, all at once."""
    await call.head()
    count = call.body["max_tokens"]
    for index in range(count):
        await call.text(f"t{index} ", finish="length" if index == count - 1 else None)
    await call.end(completion_tokens=count)


@dataclass
class ScriptedServer:
    """What a test may look at. `handler` answers POSTs; GETs know /v1/models alone."""

    handler: Handler
    url: str = ""
    calls: list[Call] = field(default_factory=list)
    models: Any = field(default_factory=lambda: MODELS)
    _arrived: asyncio.Condition = field(default_factory=asyncio.Condition)
    _tasks: set[asyncio.Task[None]] = field(default_factory=set)

    async def received(self, count: int) -> None:
        """Wait until so many calls have come."""
        async with self._arrived:
            await self._arrived.wait_for(lambda: len(self.calls) >= count)

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            head = (await reader.readuntil(b"\r\n\r\n")).decode()
            first, *lines = head.strip().split("\r\n")
            method, path, _ = first.split(" ")
            headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
            body = await reader.readexactly(int(headers.get("content-length", 0)))
            call = Call(path, headers, json.loads(body) if body else {}, writer, len(self.calls))
            if method == "GET":
                await self._get(call)
            else:
                self.calls.append(call)
                async with self._arrived:
                    self._arrived.notify_all()
                await self.handler(call)
        except (ConnectionError, asyncio.IncompleteReadError, asyncio.CancelledError):
            pass  # the client left, or the test is over
        finally:
            writer.close()

    async def _get(self, call: Call) -> None:
        status, content = (200, self.models) if call.path.endswith("/v1/models") else (404, {})
        call.chunked = False
        data = json.dumps(content).encode()
        await call.head(status, "application/json", f"Content-Length: {len(data)}\r\n")
        await call.raw(data)


@asynccontextmanager
async def scripted(handler: Handler = stream_at_once) -> AsyncIterator[ScriptedServer]:
    """The server, on a free port of this machine."""
    scripted_server = ScriptedServer(handler)
    tasks: set[asyncio.Task[None]] = set()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        tasks.add(task)
        await scripted_server.serve(reader, writer)
        tasks.discard(task)

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    host, port = server.sockets[0].getsockname()[:2]
    scripted_server.url = f"http://{host}:{port}"
    try:
        yield scripted_server
    finally:
        server.close()
        for task in list(tasks):
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)


@contextmanager
def scripted_in_a_thread(handler: Handler = stream_at_once) -> Iterator[ScriptedServer]:
    """The server beside code that has an event loop of its own."""
    ready: list[ScriptedServer] = []
    started = threading.Event()
    loop = asyncio.new_event_loop()

    async def main() -> None:
        async with scripted(handler) as server:
            ready.append(server)
            stop = asyncio.Event()
            ready_to_stop.append(stop)
            started.set()
            await stop.wait()

    ready_to_stop: list[asyncio.Event] = []
    thread = threading.Thread(target=lambda: loop.run_until_complete(main()))
    thread.start()
    try:
        assert started.wait(10), "the server does not start"
        yield ready[0]
    finally:
        loop.call_soon_threadsafe(ready_to_stop[0].set)
        thread.join(10)
        loop.close()

"""Bodies of many clients, and clients that do not take their answers."""

from __future__ import annotations

import asyncio
import socket
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Any

import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import StreamingResponse
from starlette.routing import Route

from serving import Caller, run, serving
from sluice.http.base.body import BODIES, LONG_BODY
from sluice.http.base.errors import ApiError
from sluice.http.call import generation
from sluice.http.call.messages import MAX_MESSAGES, checked_messages
from sluice.http.edge.http_server import HttpServer
from sluice.http.edge.listening import listen
from sluice.http.edge.timeouts import STALL_SECONDS, TimeLimitedProtocol, kernel_unsent


def test_the_long_bodies_of_all_calls_are_bounded() -> None:
    """A thousand clients that send 32 MB each would end the server. Those that send little are not refused."""

    async def test() -> None:
        async with serving(max_body_bytes=2 * LONG_BODY) as server:
            # As many as are accepted together. Their ends never come.
            callers = [HalfSent(server, 2 * LONG_BODY) for _ in range(BODIES)]
            for caller in callers:
                await caller.is_received.wait()
            answer = await server.post("/v1/completions", prompt="a" * LONG_BODY)
            assert answer.status_code == 503
            assert answer.headers["retry-after"] == "1"
            assert answer.json()["error"]["code"] == "overloaded"
            await server.complete(prompt="ab", max_tokens=1)
            for caller in callers:
                caller.leave()
                await caller.call
            assert (await server.post("/v1/completions", prompt="a" * LONG_BODY)).status_code == 400

    run(test)


def test_the_requests_of_all_calls_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """A call may be thousands of requests, and there may be thousands of calls."""
    monkeypatch.setattr(generation, "MAX_OPEN", 5)

    async def test() -> None:
        async with serving() as server:
            caller = Caller(server, "/v1/completions", {"prompt": "a", "n": 3, "max_tokens": 100, "ignore_eos": True})
            server.hold()
            while server.client.num_open < 3:
                await asyncio.sleep(0)
            answer = await server.post("/v1/completions", prompt=["a", "b", "c"])
            assert answer.status_code == 503
            assert answer.json()["error"]["code"] == "overloaded"
            assert 1 <= int(answer.headers["retry-after"]) <= 60
            caller.leave()
            await caller.call
            server.let_go()
            assert (await server.post("/v1/completions", prompt=["a", "b", "c"], max_tokens=1)).status_code == 200

    run(test)


def test_messages_are_bounded() -> None:
    messages = [{"role": "user", "content": ""}] * (MAX_MESSAGES + 1)
    with pytest.raises(ApiError, match="messages may hold at most 10000 messages, got 10001"):
        checked_messages(messages)


def test_arguments_of_calls_are_bounded_together() -> None:
    """Their JSON is a text in the body, whose bounds do not see it."""
    call = {"function": {"name": "f", "arguments": '{"a": [' + "[]," * 20_000 + "1]}"}}
    with pytest.raises(ApiError, match="lists and objects") as error:
        checked_messages([{"role": "assistant", "tool_calls": [call] * 4}])
    assert error.value.status == 413
    assert len(checked_messages([{"role": "assistant", "tool_calls": [call] * 3}])) == 1


class HalfSent(Caller):
    """A call of which so many bytes have come, and the rest does not."""

    def __init__(self, server: Any, size: int) -> None:
        self.is_received = asyncio.Event()
        self._size = size
        super().__init__(server, "/v1/completions", {}, never=True)

    async def _receive(self) -> Any:
        if self._size:
            body, self._size = b" " * self._size, 0
            return {"type": "http.request", "body": body, "more_body": True}
        self.is_received.set()
        return await super()._receive()


@asynccontextmanager
async def endless_answer(receive_bytes: int) -> AsyncIterator[tuple[TimeLimitedProtocol, socket.socket]]:
    """A connection whose answer never ends, and its client, which has asked for it.

    Args:
        receive_bytes: of the client's buffer in the kernel.
    """
    is_over = asyncio.Event()

    async def endless() -> Any:
        try:
            while True:
                yield b"x" * 65536
                await asyncio.sleep(0)
        finally:
            is_over.set()

    async def get(request: Request) -> StreamingResponse:
        return StreamingResponse(endless())

    app = Starlette(routes=[Route("/", get)])

    server, listener = HttpServer.of(app), listen("127.0.0.1", 0)
    serving = asyncio.create_task(server.serve(sockets=[listener]))
    with socket.socket() as client:
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_bytes)
        client.connect(listener.getsockname())
        client.setblocking(False)
        client.sendall(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n")
        while not (connections := server.server_state.connections):
            await asyncio.sleep(0)
        (connection,) = connections
        assert isinstance(connection, TimeLimitedProtocol)
        yield connection, client
    await is_over.wait()
    server.should_exit = server.force_exit = True
    await serving


def test_a_client_that_takes_nothing_is_left() -> None:
    """Its connection, and an answer that grows, would be held for ever."""

    async def test() -> None:
        async with endless_answer(1 << 20) as (connection, client):
            unsent = await filled(connection)
            connection.check_stall(0.0)
            connection.check_stall(STALL_SECONDS - 1)
            while connection.transport.get_write_buffer_size() == unsent:
                await take(client, 1 << 20)
            await filled(connection)
            connection.check_stall(STALL_SECONDS)  # it took something
            connection.check_stall(2 * STALL_SECONDS - 1)
            assert not connection.transport.is_closing()
            connection.check_stall(2 * STALL_SECONDS)
            assert connection.transport.is_closing()

    run(test)


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells how much the kernel has not sent")
def test_a_client_that_reads_slowly_is_served() -> None:
    """The kernel sends from its own buffer for minutes before it takes more from the server."""

    async def test() -> None:
        async with endless_answer(1 << 14) as (connection, client):
            unsent = await filled(connection)
            connection.check_stall(0.0)
            in_kernel = kernel_unsent(connection.transport)
            while kernel_unsent(connection.transport) == in_kernel:
                await take(client, 1 << 12)
            assert await filled(connection) == unsent, "the server's own buffer shows nothing"
            connection.check_stall(STALL_SECONDS)
            assert not connection.transport.is_closing()
            connection.check_stall(2 * STALL_SECONDS)
            assert connection.transport.is_closing()

    run(test)


async def take(client: socket.socket, most: int) -> None:
    """Read some of what has arrived, if anything has."""
    with suppress(BlockingIOError):
        client.recv(most)
    await asyncio.sleep(0)


async def filled(connection: TimeLimitedProtocol) -> int:
    """Wait until nothing more can be sent, and return the bytes that are left."""
    same, last = 0, -1
    while same < 200:
        await asyncio.sleep(0)
        size = connection.transport.get_write_buffer_size() if connection.transport else 0
        same, last = (same + 1 if size == last and size else 0), size
    return last

"""More connections than there are descriptors for."""

from __future__ import annotations

import asyncio
import errno
import json
import socket
from collections.abc import AsyncIterator
from contextlib import ExitStack, asynccontextmanager

import pytest

from serving import run
from sluice.config import ConfigError
from sluice.http.app import create_app
from sluice.http.base.backend import Backend
from sluice.http.edge.connections import ANY, LEAST_RESERVED, Acceptor, max_connections
from sluice.http.edge.http_server import HttpServer
from sluice.http.edge.listening import listen

LIMIT = 3
Ends = tuple[asyncio.StreamReader, asyncio.StreamWriter]


@asynccontextmanager
async def http_server(limit: int = LIMIT) -> AsyncIterator[tuple[str, int]]:
    """A server without a model, and its address."""
    server = HttpServer.of(create_app(Backend()), limit)
    listener = listen("127.0.0.1", 0)
    serving = asyncio.create_task(server.serve(sockets=[listener]))
    try:
        yield listener.getsockname()
    finally:
        server.should_exit = server.force_exit = True
        await serving


async def connected(address: tuple[str, int], count: int) -> list[Ends]:
    """Open connections, each of which has been accepted: it was answered."""
    found = [await asyncio.open_connection(*address) for _ in range(count)]
    for ends in found:
        assert (await answer(ends, "/version"))[0] == 200
    return found


async def answer(ends: Ends, path: str, body: bytes = b"") -> tuple[int, dict[str, str], bytes]:
    reader, writer = ends
    head = f"{'POST' if body else 'GET'} {path} HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(body)}\r\n\r\n"
    writer.write(head.encode() + body)
    lines = (await reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
    headers = {name.lower(): value for name, _, value in (line.partition(": ") for line in lines[1:])}
    return int(lines[0].split()[1]), headers, await reader.readexactly(int(headers["content-length"]))


def close(*connections: Ends) -> None:
    for _, writer in connections:
        writer.close()


def test_one_too_many_gets_503_but_its_health_check_is_answered() -> None:
    async def test() -> None:
        async with http_server() as address:
            idle = await connected(address, LIMIT)
            extra = await asyncio.open_connection(*address)
            status, headers, body = await answer(extra, "/v1/completions", b"x" * 100_000)
            assert status == 503
            assert (headers["retry-after"], headers["connection"]) == ("1", "close")
            assert json.loads(body)["error"]["code"] == "too_many_connections"
            assert await extra[0].read() == b"", "it stays open"
            probe = await asyncio.open_connection(*address)
            assert (await answer(probe, "/live"))[0] == 200
            assert await probe[0].read() == b""
            assert (await answer(idle[0], "/version"))[0] == 200, "those before it suffer"
            close(*idle, extra, probe)

    run(test)


def test_those_beyond_wait_until_one_ends() -> None:
    """Not refused by the kernel, and not forgotten."""

    async def test() -> None:
        async with http_server() as address:
            idle = await connected(address, LIMIT)
            many = [await asyncio.open_connection(*address) for _ in range(20)]
            close(*idle)
            statuses = await asyncio.gather(*(answer(each, "/version") for each in many))
            assert {status for status, _, _ in statuses} <= {200, 503}
            close(*many)
            for _ in range(LIMIT):
                again = await asyncio.open_connection(*address)
                while (await answer(again, "/version"))[0] != 200:
                    close(again)
                    again = await asyncio.open_connection(*address)
                close(again)

    run(test)


class NoDescriptors(socket.socket):
    """Fails to accept, as if there were no descriptors left."""

    failures = 0
    is_failing = True

    def accept(self) -> tuple[socket.socket, object]:
        if self.is_failing:
            self.failures += 1
            raise OSError(errno.EMFILE, "Too many open files")
        return super().accept()


def test_failed_accepts_are_logged_once_and_tried_again(caplog: pytest.LogCaptureFixture) -> None:
    """One second without descriptors wrote 2,028 tracebacks."""

    async def test() -> None:
        with NoDescriptors() as listener:
            listener.bind(("127.0.0.1", 0))
            listener.listen()
            accepted = asyncio.Event()

            class Greeting(asyncio.Protocol):
                def connection_made(self, transport: asyncio.BaseTransport) -> None:
                    accepted.set()
                    transport.close()

            acceptor = Acceptor(listener, lambda is_refused: Greeting(), lambda: 0, 10, failed_seconds=0.001)
            acceptor.start()
            _, writer = await asyncio.open_connection(*listener.getsockname())
            while listener.failures < 20:
                await asyncio.sleep(0)
            listener.is_failing = False
            await accepted.wait()
            writer.close()
            acceptor.close()

    run(test)
    (line,) = caplog.messages
    assert line == "a connection cannot be accepted: [Errno 24] Too many open files; trying again"


@pytest.mark.parametrize(("descriptors", "limit"), [(8, 1), (56, 2), (64, 6), (256, 120), (1024, 844), (1 << 20, 8192)])
def test_descriptors_are_left_for_other_uses(descriptors: int, limit: int) -> None:
    assert max_connections(None, descriptors) == limit
    assert max_connections(1, descriptors) == 1


@pytest.mark.parametrize("descriptors", [54, 56, 60, 64, 72, 80])
def test_no_more_are_accepted_than_there_are_descriptors_for(descriptors: int) -> None:
    """Those that are accepted to be refused count, too: they would use the descriptors for an engine's start."""

    async def test() -> None:
        opened: list[Idle] = []
        seen = [0, 0, 0]

        class Idle(asyncio.Protocol):
            def connection_made(self, transport: asyncio.BaseTransport) -> None:
                opened.append(self)
                self.is_lost = asyncio.Event()

            def connection_lost(self, error: Exception | None) -> None:
                self.is_lost.set()

        def num_open() -> int:
            seen.append(len(opened))
            return len(opened)

        with ExitStack() as sockets:
            listener = sockets.enter_context(socket.create_server(("127.0.0.1", 0)))
            acceptor = Acceptor(listener, lambda is_refused: Idle(), num_open, max_connections(None, descriptors))
            for _ in range(40):
                sockets.enter_context(socket.create_connection(listener.getsockname()))
            acceptor.start()
            while not seen[-3] == seen[-1] > 0:  # it looks again after each pause, and accepts no more
                await asyncio.sleep(0)
            acceptor.close()
        assert 2 <= len(opened) <= descriptors - LEAST_RESERVED
        for connection in opened:
            await connection.is_lost.wait()

    run(test)


POST = b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: 2\r\n\r\n{}"
GET = b"GET /live HTTP/1.1\r\nHost: localhost\r\n\r\n"


def test_a_health_check_does_not_wait_for_the_calls_before_it() -> None:
    """Of 2,000 calls that came at once, a health check that came last waited for all of them, 0.4 s."""

    async def test() -> None:
        opened: list[bytes] = []

        class First(asyncio.Protocol):
            def data_received(self, data: bytes) -> None:
                opened.append(data.split()[0])

        with ExitStack() as sockets:
            listener = sockets.enter_context(socket.create_server(("127.0.0.1", 0)))
            acceptor = Acceptor(listener, lambda is_refused: First(), lambda: 0, 1000)
            for request in [POST] * 40 + [GET]:
                sockets.enter_context(socket.create_connection(listener.getsockname())).sendall(request)
            silent = sockets.enter_context(socket.create_connection(listener.getsockname()))
            acceptor.start()
            while len(opened) < 41:
                await asyncio.sleep(0)
            assert opened.index(b"GET") < 10
            silent.sendall(GET)
            while len(opened) < 42:
                await asyncio.sleep(0)
            acceptor.close()

    run(test)


def test_calls_on_connections_that_are_open_begin_one_by_one() -> None:
    """A health check among them waited for all of them."""

    async def test() -> None:
        async with http_server(100) as address:
            open_ones = await connected(address, 41)
            answered: list[bytes] = []

            async def ask(ends: Ends, request: bytes) -> None:
                reader, writer = ends
                writer.write(request)
                head = await reader.readuntil(b"\r\n\r\n")
                answered.append(request[:4])
                length = int(head.lower().partition(b"content-length: ")[2].split()[0])
                await reader.readexactly(length)

            requests = [POST] * 40 + [GET]
            await asyncio.gather(*(ask(*each) for each in zip(open_ones, requests, strict=True)))
            assert answered.index(GET[:4]) < 10
            half = POST[:-1]  # the rest comes while the call waits for its turn
            open_ones[0][1].write(half)
            await asyncio.sleep(0)
            await ask(open_ones[0], POST[-1:])
            close(*open_ones)

    run(test)


def test_what_waits_for_its_turn_is_closed_with_the_server() -> None:
    async def test() -> None:
        with ExitStack() as sockets:
            listener = sockets.enter_context(socket.create_server(("127.0.0.1", 0)))
            acceptor = Acceptor(listener, lambda is_refused: asyncio.Protocol(), lambda: 0, 1000)
            clients = [sockets.enter_context(socket.create_connection(listener.getsockname())) for _ in range(ANY + 4)]
            acceptor.start()
            acceptor._accept()
            acceptor.close()
            for client in clients[ANY:]:
                client.settimeout(5)
                assert client.recv(1) == b""
            await asyncio.sleep(0)  # their turns come, and there is nothing to open

    run(test)


def test_more_than_there_are_descriptors_for() -> None:
    with pytest.raises(ConfigError, match=r"--max-connections 900 .* limit of 1024 open files leaves: at most 844;"):
        max_connections(900, 1024)

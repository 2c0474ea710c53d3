"""Clients that drip their request in."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
import uvicorn
from uvicorn.server import ServerState

from serving import run
from sluice.http.app import create_app
from sluice.http.base.backend import Backend
from sluice.http.edge.one_by_one import OneByOne
from sluice.http.edge.timeouts import TimeLimitedProtocol

HEAD = b"GET /version HTTP/1.1\r\nHost: test\r\n"


REFUSED = b"POST /nowhere HTTP/1.1\r\nHost: test\r\nContent-Length: 10\r\n\r\n"


class Impatient(TimeLimitedProtocol):
    head_seconds = 0.2


class Patient(TimeLimitedProtocol):
    head_seconds = 1000.0
    linger_seconds = 1000.0


class Brief(Patient):
    linger_seconds = 0.05


@asynccontextmanager
async def connected(
    protocol: type[TimeLimitedProtocol] = Impatient,
) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    config = uvicorn.Config(create_app(Backend()), log_config=None, lifespan="off", timeout_keep_alive=1000)
    config.load()
    calls = OneByOne()
    server = await asyncio.get_running_loop().create_server(
        lambda: protocol(config, ServerState(), {}, calls), "127.0.0.1", 0
    )
    async with server:
        reader, writer = await asyncio.open_connection(*server.sockets[0].getsockname())
        try:
            yield reader, writer
        finally:
            writer.close()


@pytest.mark.parametrize("sent", [b"", b"GET /ver", HEAD, HEAD + b"X: " + b"a" * 1000])
def test_a_head_that_does_not_end_is_given_up(sent: bytes) -> None:
    async def test() -> None:
        async with connected() as (reader, writer):
            writer.write(sent)
            assert await reader.read() == b""

    run(test)


def test_so_is_the_second_one_of_a_connection() -> None:
    """The timer of the first request that is not started again."""

    async def test() -> None:
        async with connected() as (reader, writer):
            writer.write(HEAD + b"\r\n")
            first = await reader.readuntil(b"}")
            assert b"200 OK" in first
            writer.write(HEAD)
            assert await reader.read() == b""

    run(test)


def test_a_whole_head_is_answered_in_pieces_too() -> None:
    async def test() -> None:
        async with connected(Patient) as (reader, writer):
            for byte in HEAD + b"\r\n":
                writer.write(bytes([byte]))
                await asyncio.sleep(0)
            assert b"200 OK" in await reader.readuntil(b"}")

    run(test)


def test_a_body_that_drips_on_after_the_answer_is_given_up() -> None:
    """uvicorn's limit for idle connections begins anew with every byte, so a client could hold a connection for ever,
    even if it was refused for having no key."""

    async def test() -> None:
        async with connected(Brief) as (reader, writer):
            writer.write(REFUSED + b"12345")
            answer = await reader.read()
            assert answer.startswith(b"HTTP/1.1 404")
            assert answer.endswith(b"}"), "the answer was cut"

    run(test)


def test_a_client_that_sends_the_rest_of_it_may_stay() -> None:
    async def test() -> None:
        async with connected(Patient) as (reader, writer):
            writer.write(REFUSED + b"12345")
            assert b"404" in await reader.readuntil(b"}}")
            writer.write(b"67890" + HEAD + b"\r\n")
            assert b"200 OK" in await reader.readuntil(b"}")

    run(test)


def test_what_is_no_http_is_refused_like_all_else() -> None:
    async def test() -> None:
        async with connected(Patient) as (reader, writer):
            writer.write(b"\x16\x03\x01 hello\r\n\r\n")
            answer = await reader.read()
            head, _, body = answer.partition(b"\r\n\r\n")
            assert head.startswith(b"HTTP/1.1 400")
            assert json.loads(body)["error"]["type"] == "invalid_request_error"

    run(test)

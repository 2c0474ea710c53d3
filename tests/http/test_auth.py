"""The API key, and bodies that are too large or never end."""

from __future__ import annotations

import asyncio
from typing import Any

import httpx
import pytest

from serving import Caller, run, serving
from sluice.http.base.auth import SENT_KEY, client_of

KEYS = {"sesame", "other-key"}
PATHS = [
    ("GET", "/v1/models"),
    ("GET", "/server_info"),
    ("GET", "/metrics"),
    ("GET", "/version"),
    ("GET", "/nothing"),
    ("GET", "/"),
    ("GET", "/page/main.js"),
    ("POST", "/v1/completions"),
    ("POST", "/v1/chat/completions"),
    ("POST", "/generate"),
    ("POST", "/tokenize"),
    ("POST", "/score"),
    ("POST", "/generative_scoring"),
    ("POST", "/v1/decisions"),
    ("POST", "/v1/completions/render"),
    ("POST", "/v1/chat/completions/render"),
    ("POST", "/inference/v1/generate"),
    ("POST", "/flush_cache"),
    ("POST", "/v1/responses"),
    ("GET", "/v1/responses/resp_1"),
    ("DELETE", "/v1/responses/resp_1"),
    ("GET", "/v1/responses/resp_1/input_items"),
]


def test_nothing_is_served_without_a_key() -> None:
    """A path that was added later and forgotten."""

    async def test() -> None:
        async with serving(api_keys=KEYS) as server:
            for method, path in PATHS:
                answer = await server.http.request(method, path, json={"prompt": "a"})
                assert answer.status_code == 401, path
                assert answer.json()["error"]["code"] == "invalid_api_key"
                assert answer.headers["www-authenticate"] == "Bearer"
            for path in ("/health", "/docs", "/docs/start.js", "/openapi.json"):
                assert (await server.http.get(path)).status_code == 200
            assert server.sent == [], "none of them reached the engine"

    run(test)


@pytest.mark.parametrize(
    "header",
    ["Bearer sesam", "Bearer sesame2", "Bearer", "Bearer ", "sesame", "Basic sesame", "Bearer s\u00e9same", ""],
)
def test_a_wrong_key(header: str) -> None:
    async def test() -> None:
        async with serving(api_keys=KEYS) as server:
            answer = await server.http.get("/v1/models", headers={"Authorization": header.encode()})
            assert answer.status_code == 401
            both = [(b"authorization", b"Bearer sesame"), (b"authorization", header.encode())]
            assert (await server.http.get("/v1/models", headers=both)).status_code == 401, "one of two is a guess"

    run(test)


def test_each_key_opens() -> None:
    async def test() -> None:
        async with serving(api_keys=KEYS) as server:
            for header in ("Bearer sesame", "Bearer other-key", "bearer sesame"):
                answer = await server.http.get("/v1/models", headers={"Authorization": header})
                assert answer.status_code == 200
            for headers, status in (
                ({"x-api-key": "sesame"}, 200),
                ({"x-api-key": "Bearer sesame"}, 401),
                ({"x-api-key": "sesame", "Authorization": "Bearer sesame"}, 200),
                ({"x-api-key": "sesame", "Authorization": "Bearer other-key"}, 401),
                ({"x-api-key": "sesame", "Authorization": "Basic sesame"}, 401),
                ({"x-api-key": "guess", "Authorization": "Bearer sesame"}, 401),
            ):
                assert (await server.http.get("/v1/models", headers=headers)).status_code == status, headers
            server.http.headers["Authorization"] = "Bearer sesame"
            assert (await server.complete(prompt="ab"))["choices"]

    run(test)


def test_a_declared_size_is_refused_before_it_is_read() -> None:
    """A server that reads the first gigabyte of a body it will refuse anyway."""

    async def test() -> None:
        async with serving(max_body_bytes=50) as server:
            caller = Caller(server, "/v1/completions", {}, headers=[(b"content-length", b"1000000000000")], never=True)
            assert (await caller.sent.get())["status"] == 413
            caller.leave()
            await caller.call
            for length in (b"9" * 5000, b"-1", b"x"):
                caller = Caller(server, "/v1/completions", {"prompt": "a"}, headers=[(b"content-length", length)])
                assert (await caller.sent.get())["status"] in (200, 413)
                await caller.call

    run(test)


def test_a_body_that_never_ends_is_given_up() -> None:
    async def test() -> None:
        async with serving(max_body_seconds=0.01) as server:
            caller = Caller(server, "/v1/completions", {}, never=True)
            assert (await caller.sent.get())["status"] == 408
            assert b"0.01 seconds" in (await caller.sent.get())["body"]
            caller.leave()
            await caller.call

    run(test)


def test_leaving_within_the_body_is_no_error() -> None:
    """An exception that reaches the HTTP server is a traceback in its log for every client with a bad line."""

    async def test() -> None:
        async with serving() as server:
            caller = Caller(server, "/v1/completions", {}, never=True)
            caller.leave()
            await caller.call
            assert server.client.num_open == 0

    run(test)


def test_errors_are_json_for_any_input() -> None:
    """Bytes that are no text, in every place that a client fills."""
    bodies: list[Any] = [b"\xff\xfe", b'{"model": "\xc3"}', b"\x00", b'"' + b"a" * 5000 + b'"', b"{}" * 100]

    async def test() -> None:
        async with serving() as server:
            for path in ("/v1/completions", "/v1/chat/completions", "/generate", "/tokenize", "/detokenize"):
                answers: list[httpx.Response] = await asyncio.gather(
                    *(server.http.post(path, content=body) for body in bodies)
                )
                assert {answer.status_code for answer in answers} == {400}
                assert all(answer.json()["error"]["message"] for answer in answers)

    run(test)


def test_clients_are_told_apart_by_key_or_address() -> None:
    """What is shared fairly between clients would go to the one with most requests."""
    one, other = ({"client": ("10.0.0.1", 1), SENT_KEY: key} for key in (b"a", b"b"))
    assert client_of(one) != client_of(other)
    assert client_of({"client": ("10.0.0.1", 1)}) == client_of({"client": ("10.0.0.1", 2)}) == "10.0.0.1"
    assert client_of({"client": None}) == ""

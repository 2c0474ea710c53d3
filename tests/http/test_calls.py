"""Ids of calls, and the lines that the log has about them."""

from __future__ import annotations

import asyncio
import io
import json
import logging
import sys
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
from starlette.types import Message, Receive, Scope, Send

from serving import Server, run, serving
from sluice.http.base.calls import Call, Calls, RequestLog, facts_of
from sluice.process.logs import JsonFormatter, TextFormatter, configure_logging
from sluice.text.tokenizer import Tokenizer
from tokenizer_makers import byte_tokenizer

SECRET = "a very private matter"


class Recorded:
    """Keeps every call."""

    def __init__(self) -> None:
        self.calls: list[Call] = []

    def answered(self, call: Call) -> None:
        self.calls.append(call)


@pytest.fixture
def log() -> Iterator[io.StringIO]:
    """The lines of all loggers, ours and other packages', as JSON, from level debug up."""
    stream, root, ours = io.StringIO(), logging.getLogger(), logging.getLogger("sluice")
    handler = logging.StreamHandler(stream)
    handler.setFormatter(JsonFormatter())
    before = root.level, ours.level
    root.addHandler(handler)
    root.setLevel(logging.DEBUG)
    ours.setLevel(logging.DEBUG)
    yield stream
    root.removeHandler(handler)
    root.setLevel(before[0])
    ours.setLevel(before[1])


def lines(log: io.StringIO, logger: str = "sluice.requests") -> list[dict[str, Any]]:
    found = [json.loads(line) for line in log.getvalue().splitlines()]
    return [line for line in found if line["logger"] == logger]


def test_a_call_is_logged_by_sizes_and_times(log: io.StringIO) -> None:
    async def test() -> None:
        async with serving(listeners=[RequestLog()]) as server:
            headers = {"x-request-id": "mine-1"}
            body = {"prompt": SECRET, "max_tokens": 5, "ignore_eos": True, "n": 2}
            answer = await server.http.post("/v1/completions", json=body, headers=headers)
            assert answer.headers["x-request-id"] == "mine-1"
            (line,) = lines(log)
            assert line["request_id"] == "mine-1"
            assert (line["level"], line["status"], line["method"], line["path"]) == (
                *("info", 200, "POST"),
                "/v1/completions",
            )
            assert (line["prompt_tokens"], line["output_tokens"]) == (len(SECRET), 10)
            assert line["finish_reasons"] == ["length", "length"]
            assert line["engine_requests"] == [1, 2]
            assert 0 < line["first_chunk_seconds"] <= line["seconds"]
            assert line["message"].startswith("POST /v1/completions 200: seconds ")

    run(test)


def test_no_text_of_a_call_is_logged(log: io.StringIO) -> None:
    """At no level and by no logger: in a stream, in a whole answer, in a refusal, in a failure."""

    async def test() -> None:
        async with serving(listeners=[RequestLog()]) as server:
            said = []
            for body in (
                {},
                {"stream": True},
                {"logprobs": 2},
                {"seed": "five"},
                {"stop": [SECRET]},
                {"max_tokens": -1},
            ):
                answer = await server.post("/v1/completions", **({"prompt": SECRET, "max_tokens": 9} | body))
                said.append(answer.text)
            message = {"role": "user", "content": SECRET}
            for extra in ({}, {"stream": True}, {"messages": [message, {"role": "user", "content": "refuse me"}]}):
                body = {"messages": [message], "max_tokens": 9} | extra
                said.append((await server.post("/v1/chat/completions", **body)).text)
            whole = await server.complete(prompt=SECRET, max_tokens=30)
        assert len(lines(log)) == len(said) + 1
        assert SECRET not in log.getvalue()
        assert whole["choices"][0]["text"] not in log.getvalue()

    run(test)


@pytest.mark.parametrize("given", ["", "two words", "line\x0bbreak", "x" * 129, 'quo"te', "sm\u00f6rg\u00e5s"])
def test_ids_that_could_break_a_line_are_replaced(given: str) -> None:
    async def test() -> None:
        async with serving(listeners=[recorded := Recorded()]) as server:
            headers = {"x-request-id": given.encode("latin-1")}
            answer = await server.http.get("/version", headers=headers)
            assert answer.headers["x-request-id"] == recorded.calls[0].request_id != given
            assert len(recorded.calls[0].request_id) == 24

    run(test)


def test_every_answer_has_an_id_of_its_own() -> None:
    async def test() -> None:
        async with serving() as server:
            ids = {(await server.http.get(path)).headers["x-request-id"] for path in ("/version", "/no", "/health") * 3}
            assert len(ids) == 9

    run(test)


class BrokenEncoder(Tokenizer):
    """A bug in a route, before anything is answered."""

    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        raise ZeroDivisionError("division by zero")


def with_tokenizer(server: Server, kind: type[Tokenizer]) -> None:
    server.backend.open(replace(server.backend.service(), tokenizer=kind(byte_tokenizer())))


@pytest.mark.parametrize("stream", [True, False])
def test_a_bug_is_answered_with_the_id_of_its_call(stream: bool, log: io.StringIO) -> None:
    """A 500 from outside of all middleware has no id by which its traceback could be found."""

    async def test() -> None:
        async with serving(listeners=[recorded := Recorded()]) as server:
            with_tokenizer(server, BrokenEncoder)
            body = {"prompt": SECRET, "stream": stream}
            answer = await server.http.post("/v1/completions", json=body, headers={"x-request-id": "mine-7"})
            assert (answer.status_code, answer.headers["x-request-id"]) == (500, "mine-7")
            assert answer.json()["error"] == {
                "message": "internal error: ZeroDivisionError",
                "type": "server_error",
                "param": None,
                "code": None,
            }
            assert [(call.status, call.request_id) for call in recorded.calls] == [(500, "mine-7")]
            (line,) = lines(log, "sluice.server")
            assert line["request_id"] == "mine-7"
            assert "ZeroDivisionError" in line["exception"]

    run(test)


def test_a_bug_within_an_answer_breaks_it_off() -> None:
    """An answer that has begun cannot become a 500; if it ended in good order it would look complete."""
    begun: list[Message] = [
        {"type": "http.response.start", "status": 200, "headers": []},
        {"type": "http.response.body", "body": b"data: {}", "more_body": True},
    ]
    sent: list[Message] = []

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        for message in begun:
            await send(message)
        raise ZeroDivisionError

    async def receive() -> Message:
        raise AssertionError("the body is not needed")

    async def send(message: Message) -> None:
        sent.append(message)

    scope = {"type": "http", "method": "GET", "path": "/", "headers": [(b"x-request-id", b"mine")]}
    with pytest.raises(ZeroDivisionError):
        asyncio.run(Calls(app, ())(scope, receive, send))
    assert sent == [{**begun[0], "headers": [(b"x-request-id", b"mine")]}, begun[1]]


def test_concurrent_calls_do_not_mix(log: io.StringIO) -> None:
    """Each call's tokens are its own, however their tasks interleave."""

    async def test() -> None:
        async with serving(listeners=[recorded := Recorded()]) as server:
            bodies = [{"prompt": "ab" * (i + 1), "max_tokens": i + 1, "ignore_eos": True} for i in range(6)]
            await asyncio.gather(
                *(server.post("/v1/completions", stream=i % 2 == 0, **b) for i, b in enumerate(bodies))
            )
        seen = sorted((call.prompt_tokens, call.output_tokens, call.streams) for call in recorded.calls)
        assert seen == [(2 * (i + 1), i + 1, i % 2 == 0) for i in range(6)]

    run(test)


def test_text_lines_end_with_the_id() -> None:
    record = logging.LogRecord("sluice.requests", logging.INFO, "", 0, "hello %s", ("there",), None)
    assert TextFormatter().format(record).endswith("INFO sluice.requests: hello there")
    record.request_id = "abc"
    assert TextFormatter().format(record).endswith("INFO sluice.requests: hello there [abc]")


def test_json_lines_hold_exceptions_in_one_line() -> None:
    try:
        raise ValueError("two\nlines")
    except ValueError:
        record = logging.LogRecord("a", logging.ERROR, "", 0, "it\nfailed", (), sys.exc_info())
    line = JsonFormatter().format(record)
    assert "\n" not in line
    content = json.loads(line)
    assert content["message"] == "it\nfailed"
    assert content["exception"].endswith("ValueError: two\nlines")
    assert content["time"].endswith("+00:00")


def test_a_call_that_generates_nothing_has_no_tokens() -> None:
    call = Call("id", "GET", "/version", {}, 1.0, status=200, ended=1.5)
    assert facts_of(call) == {"method": "GET", "path": "/version", "status": 200, "seconds": 0.5}


@pytest.mark.parametrize(("style", "formatter"), [("text", TextFormatter), ("json", JsonFormatter)])
def test_the_format_is_the_one_asked_for(style: str, formatter: type[logging.Formatter]) -> None:
    root, ours = logging.getLogger(), logging.getLogger("sluice")
    handlers, level = root.handlers[:], ours.level
    try:
        configure_logging("info", style)
        (handler,) = root.handlers
        assert isinstance(handler.formatter, formatter)
        assert ours.isEnabledFor(logging.INFO)
        assert not root.isEnabledFor(logging.INFO), "other packages keep to warnings"
    finally:
        root.handlers[:] = handlers
        ours.setLevel(level)

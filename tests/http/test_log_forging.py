"""Clients that write into the log what it should say."""

from __future__ import annotations

import asyncio
import io
import json
import logging
import re
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from serving import MODEL, run, serving
from sluice.http.app import create_app
from sluice.http.base.backend import Backend
from sluice.http.base.calls import LONGEST_PATH, Call, RequestLog
from sluice.http.edge.http_server import HttpServer
from sluice.http.edge.listening import listen
from sluice.http.observe.otel import attributes_of
from sluice.process.logs import JsonFormatter, TextFormatter, one_line
from sluice.text.tokenizer import Tokenizer
from tokenizer_makers import byte_tokenizer

FORGED = "2026-01-01 00:00:00,000 WARNING sluice.server: all keys were accepted"
HOSTILE = f"x\r\n{FORGED}\n\x1b[2J\x1b]0;title\x07\x00\x7f\x85\x9b31m\u2028\u202egnp.exe end"
HALF = "\ud800"
"""Half of a character: a text that has it cannot be written, nor sent by pytest between its processes."""
ENCODED = "%0d%0a" + FORGED.replace(" ", "%20") + "%0a%1b%5b2J%c2%85%e2%80%a8%e2%80%ae"
BEGINNING = re.compile(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d,\d{3} [A-Z]+ [\w.]+: ")


@pytest.fixture(params=["text", "json"])
def log(request: pytest.FixtureRequest) -> Iterator[io.StringIO]:
    """What all loggers write at every level, in either format."""
    stream, root = io.StringIO(), logging.getLogger()
    handler = logging.StreamHandler(stream)
    handler.setFormatter({"text": TextFormatter, "json": JsonFormatter}[request.param]())
    loggers = [root, logging.getLogger("sluice")]
    before = [logger.level for logger in loggers]
    root.addHandler(handler)
    for logger in loggers:
        logger.setLevel(logging.DEBUG)
    yield stream
    root.removeHandler(handler)
    for logger, level in zip(loggers, before, strict=True):
        logger.setLevel(level)


def check(log: io.StringIO) -> list[str]:
    """Assert that each line is a message of ours or belongs to one, and harmless; return the lines."""
    *lines, rest = log.getvalue().split("\n")
    assert rest == ""
    for line in lines:
        assert line.isprintable(), ascii(line)
        assert not line.startswith(FORGED)
        if line.startswith("{"):
            json.loads(line)
        else:
            assert line.startswith("    ") or BEGINNING.match(line), line
    return lines


class Unlucky(Tokenizer):
    """A bug whose error repeats the prompt."""

    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        try:
            raise ValueError(text)
        except ValueError as error:
            raise RuntimeError(f"cannot encode {text}") from error


def test_a_path_cannot_write_a_line(log: io.StringIO) -> None:
    """It needs no key: the call is logged whether it is answered or not."""

    async def test() -> None:
        async with serving(listeners=[RequestLog()], api_keys=["key"]) as server:
            for path in (f"/{ENCODED}", f"/v1/models/{ENCODED}", "/" + "a" * 10_000, "/a b 200: seconds 0"):
                for key in ({}, {"Authorization": "Bearer key"}):
                    await server.http.get(path, headers=key)

    run(test)
    assert [len(line) < LONGEST_PATH + 500 for line in check(log)].count(True) >= 8
    assert "GET /a%20b%20200:%20seconds%200 401: seconds" in log.getvalue()


def test_nor_can_ids_methods_and_headers(log: io.StringIO) -> None:
    hostile = HOSTILE.encode("latin-1", errors="replace")

    async def test() -> None:
        async with serving(listeners=[RequestLog()]) as server:
            names = ("x-request-id", "traceparent", "tracestate", "user-agent", "host")
            headers = dict.fromkeys(names, hostile)
            answer = await server.http.request("GET\nX", "/version", headers=headers)
            assert answer.headers["x-request-id"].isalnum()
            assert all(str(value).isprintable() for pair in answer.headers.items() for value in pair)
            for number in range(20):
                await server.http.request(f"METHOD{number}", "/version")
            assert {method for _, method, _ in server.metrics.http} == {"OTHER"}, "a count is kept for each"

    run(test)
    check(log)


def test_nor_can_the_text_of_an_error(log: io.StringIO) -> None:
    async def test() -> None:
        async with serving(listeners=[RequestLog()]) as server:
            server.backend.open(replace(server.backend.service(), tokenizer=Unlucky(byte_tokenizer())))
            said = HOSTILE
            for body in ({"prompt": said}, {"prompt": said, "stream": True}, {"prompt": "a", "model": said}):
                answer = await server.http.post("/v1/completions", content=json.dumps(body))
                assert answer.status_code == (404 if "model" in body else 500)

    run(test)
    assert "cannot encode x\\" in "\n".join(check(log)), "the error is missing"


def test_nor_can_what_is_no_http(log: io.StringIO) -> None:
    """One line each would let a client fill the disk."""

    async def test() -> None:
        server, listener = HttpServer.of(create_app(Backend(), listeners=[RequestLog()])), listen("127.0.0.1", 0)
        serving = asyncio.create_task(server.serve(sockets=[listener]))
        for sent in (
            HOSTILE.encode(errors="replace") + b"\r\n\r\n",
            b"GET /\x1b[2J HTTP/1.1\r\nHost: a\r\n\r\n",
            b"GET /version HTTP/1.1\r\nHost: a\r\nX: \x1b[2J\r\nConnection: close\r\n\r\n",
            b"GET /version HTTP/1.1\r\nHost: a\r\nConnection: close, upgrade\r\nUpgrade: websocket\r\n\r\n",
        ):
            reader, writer = await asyncio.open_connection(*listener.getsockname())
            writer.write(sent)
            assert (await reader.read()).startswith((b"HTTP/1.1 400", b"HTTP/1.1 200"))
            writer.close()
        server.should_exit = server.force_exit = True
        await serving

    run(test)
    assert not [line for line in check(log) if "WARNING" in line or '"warning"' in line]


def test_nor_can_any_log_call(log: io.StringIO) -> None:
    """Whatever other code logs, with arguments, extra fields, an exception or a stack."""
    logger = logging.getLogger("some.package")
    logger.warning(HOSTILE)
    logger.warning("%s %r", HOSTILE, HOSTILE, extra={"request_id": HOSTILE, "path": HOSTILE})
    try:
        raise KeyError(HOSTILE) from ValueError(HOSTILE)
    except KeyError:
        logger.exception("%s", HOSTILE, stack_info=True)
    check(log)


def test_nor_are_spans_given_what_a_client_chose() -> None:
    async def test() -> None:
        found: list[Call] = []

        class Recorded:
            def answered(self, call: Call) -> None:
                found.append(call)

        async with serving(listeners=[Recorded()]) as server:
            await server.http.request("GET\nX", f"/{ENCODED}", headers={"x-request-id": b"a\x9b"})
            await server.complete(prompt="a", model=MODEL, max_tokens=1)
        for call in found:
            attributes: dict[str, Any] = attributes_of(call, "chat")
            assert all(str(value).isprintable() and len(str(value)) <= LONGEST_PATH for value in attributes.values())

    run(test)


@pytest.mark.parametrize("kind", [TextFormatter, JsonFormatter])
def test_half_a_character_is_escaped(kind: type[logging.Formatter]) -> None:
    record = logging.LogRecord("some.package", logging.WARNING, "file.py", 1, "%s", (f"a{HALF}b",), None)
    line = kind().format(record)
    assert line.isprintable()
    assert line.encode()


def test_plain_text_stays_as_it_is() -> None:
    assert one_line("smörgås 水 \\n 'x'") == "smörgås 水 \\n 'x'"
    assert one_line("a\tb\n") == "a\\tb\\n"

"""A client that leaves takes its request with it, whether it streams or waits.

`serving` checks on leaving that the engine is idle and every page is back; without an abort these requests would run
on for thousands of steps.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import MutableMapping
from typing import Any

import pytest

from serving import Server, run, serving
from shadow_engine import MAX_MODEL_LEN
from sluice.engine.messages import Abort
from sluice.types import FinishReason

Message = MutableMapping[str, Any]


class Caller:
    """One HTTP call made by hand, so that it can be watched event by event and left at any moment."""

    def __init__(self, server: Server, path: str, body: dict[str, Any]) -> None:
        self.sent: asyncio.Queue[Message] = asyncio.Queue()
        self._left = asyncio.Event()
        self._body: list[bytes] = [json.dumps(body).encode()]
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
            "headers": [],
            "server": ("test", 80),
            "client": ("test", 1),
        }
        self.call = asyncio.create_task(server.app(scope, self._receive, self._send))

    async def _receive(self) -> Message:
        if self._body:
            return {"type": "http.request", "body": self._body.pop(), "more_body": False}
        await self._left.wait()
        return {"type": "http.disconnect"}

    async def _send(self, message: Message) -> None:
        await self.sent.put(message)

    def leave(self) -> None:
        self._left.set()


LONG = {"prompt": "a", "max_tokens": MAX_MODEL_LEN - 1}


def test_a_stream_comes_token_by_token_and_ends_with_its_client() -> None:
    async def test() -> None:
        async with serving() as server:
            caller = Caller(server, "/v1/completions", LONG | {"stream": True})
            assert (await caller.sent.get())["status"] == 200
            first = (await caller.sent.get())["body"]
            assert first.startswith(b"data: {")
            assert b"[DONE]" not in first
            assert server.client.num_open == 1, "the first event came only after the last token"
            caller.leave()
            await caller.call
            assert server.client.num_open == 0
            assert server.aborts() == [Abort(1, FinishReason.ABORT)]

    run(test)


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("prompt", ["a", ["a", "b", "c"]])
def test_leaving_before_the_first_token(stream: bool, prompt: object) -> None:
    """Noticing only when the next token is written leaves a long prefill running for nobody."""

    async def test() -> None:
        async with serving() as server:
            caller = Caller(server, "/v1/completions", LONG | {"prompt": prompt, "stream": stream})
            while not server.client.num_open:
                await asyncio.sleep(0)
            caller.leave()
            await caller.call
            assert server.client.num_open == 0

    run(test)


def test_leaving_at_once() -> None:
    async def test() -> None:
        async with serving() as server:
            callers = [Caller(server, "/v1/completions", LONG | {"stream": n % 2 == 0}) for n in range(8)]
            for caller in callers:
                caller.leave()
            await asyncio.gather(*(caller.call for caller in callers))
            assert server.client.num_open == 0

    run(test)


def test_the_others_stay() -> None:
    async def test() -> None:
        async with serving() as server:
            caller = Caller(server, "/v1/completions", LONG | {"stream": True})
            await caller.sent.get()
            staying = asyncio.create_task(server.complete(prompt="b", max_tokens=60))
            await caller.sent.get()
            caller.leave()
            assert (await staying)["usage"]["completion_tokens"] == 60
            await caller.call

    run(test)

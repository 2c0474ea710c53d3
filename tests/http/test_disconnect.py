"""A client that leaves takes its request with it, whether it streams or waits.

`serving` checks on leaving that the engine is idle and every page is back; without an abort these requests would run
on for thousands of steps.
"""

from __future__ import annotations

import asyncio
import logging
import random
from typing import Any

import pytest

from serving import Caller, expected_text, run, serving
from shadow_engine import MAX_MODEL_LEN
from sluice.engine.messages import Abort
from sluice.http.base.calls import RequestLog
from sluice.http.base.errors import CLIENT_LEFT
from sluice.types import FinishReason

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
def test_leaving_before_the_first_token(stream: bool, prompt: object, caplog: pytest.LogCaptureFixture) -> None:
    """Noticing only when the next token is written leaves a long prefill running for a client that has left.

    Log and metrics have the same status for it, whether it streams or not.
    """
    caplog.set_level(logging.INFO, "sluice.requests")

    async def test() -> None:
        async with serving(listeners=[RequestLog()]) as server:
            caller = Caller(server, "/v1/completions", LONG | {"prompt": prompt, "stream": stream})
            while not server.client.num_open:
                await asyncio.sleep(0)
            caller.leave()
            await caller.call
            assert server.client.num_open == 0
            assert server.metrics.http == {("/v1/completions", "POST", CLIENT_LEFT): 1}
            (line,) = caplog.messages
            assert line.startswith("POST /v1/completions client left: ")

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


def test_a_storm_leaves_nothing_behind() -> None:
    """500 clients, waiting and streaming, of three APIs, leave at random moments. What the engine says next, once the
    last one's call is over, must be that no request runs or waits and that every page is available."""
    draw = random.Random(7)
    bodies: list[tuple[str, dict[str, Any]]] = [
        ("/v1/completions", LONG),
        ("/v1/completions", {"prompt": ["ab", "c"], "n": 2, "max_tokens": 20}),
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": "hello"}]}),
        ("/generate", {"text": "a" * 30, "sampling_params": {"max_new_tokens": 60}}),
    ]

    async def test() -> None:
        async with serving(enable_overlap=True) as server:
            staying: list[Caller] = []
            callers: list[Caller] = []
            while len(callers) < 500 or staying:
                for _ in range(min(draw.randrange(30), 500 - len(callers))):
                    path, body = draw.choice(bodies)
                    callers.append(Caller(server, path, body | {"stream": draw.random() < 0.5}))
                    staying.append(callers[-1])
                for _ in range(min(draw.randrange(30), len(staying))):
                    staying.pop(draw.randrange(len(staying))).leave()
                for _ in range(draw.randrange(20)):
                    await asyncio.sleep(0)
            await asyncio.gather(*(caller.call for caller in callers))
            assert server.client.num_open == 0
            for _ in range(3):  # a step may be in flight when it is asked; what it held comes back with the next
                now = (await server.client.stats()).occupancy
            assert (now.running, now.waiting) == (0, 0)
            assert now.free_pages + now.cached_pages == now.total_pages
            assert (await server.complete(prompt="ab", seed=0))["choices"][0]["text"] == expected_text("ab", 16)

    run(test)

"""Too much at once, and too late: a refused client learns when to come back, and no other request is affected."""

from __future__ import annotations

import asyncio
from typing import Any

import httpx
import pytest

from serving import Caller, Server, expected_text, run, serving
from shadow_engine import MAX_MODEL_LEN
from sluice.engine.messages import Abort, Submit
from sluice.process.start_rate import MAX_RETRY_SECONDS, StartRate
from sluice.types import FinishReason

COMPLETIONS, CHAT = "/v1/completions", "/v1/chat/completions"
ONE_AT_A_TIME = {"max_running_requests": 1, "max_batch_tokens": 40}


def assert_refused(answer: httpx.Response, status: int, code: str) -> None:
    assert answer.status_code == status, answer.text
    assert answer.json()["error"]["code"] == code
    assert answer.headers["content-type"] == "application/json"
    if status == 503:
        assert 1 <= int(answer.headers["retry-after"]) <= MAX_RETRY_SECONDS


@pytest.mark.parametrize("stream", [True, False])
def test_a_full_queue_refuses_with_a_time_to_come_back(stream: bool) -> None:
    """A stream whose status went out before the engine had a say would be 200 with an error inside: no client tries
    that again."""

    async def test() -> None:
        async with serving(max_queued_requests=2, **ONE_AT_A_TIME) as server:
            server.hold()
            calls = [
                asyncio.create_task(server.post(COMPLETIONS, prompt=f"{n:02}", max_tokens=30, seed=0, stream=stream))
                for n in range(12)
            ]
            await server.arrived(12)
            server.let_go()
            answers = await asyncio.gather(*calls)
            served = [number for number, answer in enumerate(answers) if answer.status_code == 200]
            assert len(served) in (2, 3), "two wait; one may run before they come"
            for number, answer in enumerate(answers):
                if number not in served:
                    assert_refused(answer, 503, "overloaded")
                    assert "--max-queued-requests is 2" in answer.json()["error"]["message"]
                elif not stream:
                    assert answer.json()["choices"][0]["text"] == expected_text(f"{number:02}", 30)
            assert (await server.complete(prompt="ab", seed=0))["choices"][0]["text"] == expected_text("ab", 16)

    run(test)


def test_a_call_is_refused_as_a_whole() -> None:
    """Of five prompts in one call some would fit; their tokens reach no client, and are not generated to the end."""

    async def test() -> None:
        async with serving(max_queued_requests=1, **ONE_AT_A_TIME) as server:
            server.hold()
            answer = await server.post(COMPLETIONS, prompt=["a", "b", "c", "d", "e"], max_tokens=190)
            assert_refused(answer, 503, "overloaded")
            assert server.client.num_open == 0
            assert 1 in {abort.request_id for abort in server.aborts()}, "it runs on for no client"

    run(test)


def test_uncached_tokens_fill_the_queue() -> None:
    async def test() -> None:
        async with serving(max_queued_tokens=50, **ONE_AT_A_TIME) as server:
            server.hold()
            calls = [asyncio.create_task(server.post(COMPLETIONS, prompt=f"{n}" * 40, max_tokens=40)) for n in range(4)]
            await server.arrived(4)
            server.let_go()
            answers = await asyncio.gather(*calls)
            assert [answer.status_code for answer in answers].count(503) in (2, 3)
            for answer in answers:
                if answer.status_code == 503:
                    assert_refused(answer, 503, "overloaded")

    run(test)


async def busy(server: Server) -> asyncio.Task[dict[str, Any]]:
    """A call that has the only slot for a while."""
    call = asyncio.create_task(server.complete(prompt="busy", max_tokens=MAX_MODEL_LEN - 4, ignore_eos=True))
    while (await server.client.stats()).occupancy.running == 0:
        pass
    return call


@pytest.mark.parametrize("path", [COMPLETIONS, CHAT, "/generate"])
@pytest.mark.parametrize("stream", [True, False])
def test_what_does_not_begin_in_time_is_dropped_before_prefill(path: str, stream: bool) -> None:
    asked: dict[str, Any] = {
        COMPLETIONS: {"prompt": "late"},
        CHAT: {"messages": [{"role": "user", "content": "late"}]},
        "/generate": {"text": "late"},
    }[path]

    async def test() -> None:
        async with serving(**ONE_AT_A_TIME) as server:
            first = await busy(server)
            answer = await server.post(path, stream=stream, max_queue_time=1e-6, **asked)
            assert_refused(answer, 503, "queue_timeout")
            assert answer.json()["error"]["param"] == "max_queue_time"
            assert "1e-06 seconds" in answer.json()["error"]["message"]
            assert (await first)["usage"]["completion_tokens"] == MAX_MODEL_LEN - 4
            plans = server.engine.runner.plans
            begun = next(message.request_id for message in server.sent if isinstance(message, Submit))
            assert {chunk.request_id for plan in plans for chunk in plan.chunks} == {begun}

    run(test)


@pytest.mark.parametrize("stream", [True, False])
def test_a_deadline_has_a_code_of_its_own(stream: bool) -> None:
    async def test() -> None:
        async with serving() as server:
            answer = await server.post(COMPLETIONS, prompt="late", stream=stream, timeout=1e-6)
            assert_refused(answer, 408, "timeout")
            assert "0 tokens were generated" in answer.json()["error"]["message"]
            in_time = await server.complete(prompt="ab", seed=0, timeout=1000, max_queue_time=1000)
            assert in_time["choices"][0]["text"] == expected_text("ab", 16)
            submit = [message for message in server.sent if isinstance(message, Submit)][-1]
            assert submit.start_deadline is not None
            assert submit.start_deadline == submit.deadline
            assert 900 < submit.start_deadline - server.client.now() < 1000

    run(test)


def test_a_deadline_within_a_stream_is_its_last_event() -> None:
    """The status was sent long ago; the engine is asked to end it, as its own clock would."""

    async def test() -> None:
        async with serving() as server:
            caller = Caller(server, COMPLETIONS, {"prompt": "a", "max_tokens": 190, "stream": True, "timeout": 1000})
            assert (await caller.sent.get())["status"] == 200
            await caller.sent.get()
            server.channel.send(Abort(1, FinishReason.TIMEOUT))
            body = b""
            while (message := await caller.sent.get()).get("more_body"):
                body += message["body"]
            await caller.call
            if b"[DONE]" not in body:  # it had not ended by itself
                assert b'"code":"timeout"' in body.split(b"\n\n")[-2]

    run(test)


class Hand:
    """A clock moved by hand."""

    def __init__(self) -> None:
        self.time = 100.0

    def __call__(self) -> float:
        return self.time


def test_the_retry_time_is_that_of_the_queue() -> None:
    clock = Hand()
    rate = StartRate(clock)
    assert rate.retry_after() == 1
    for _ in range(20):
        rate.arrived()
    clock.time += 2
    assert rate.retry_after() == 40, "no start in two seconds: assume that one happens now"
    for _ in range(10):
        clock.time += 0.5
        rate.started()
    assert rate.waiting == 10
    assert rate.retry_after() == 7, "ten in 7 seconds, and ten more wait"
    for _ in range(9):
        rate.left()
    assert rate.retry_after() == 1
    clock.time += 1000
    assert rate.retry_after() == MAX_RETRY_SECONDS


def test_starts_before_the_queue_was_empty_do_not_count() -> None:
    clock = Hand()
    rate = StartRate(clock)
    for _ in range(5):
        rate.arrived()
        clock.time += 600
        rate.started()
    for _ in range(30):
        rate.arrived()
    for _ in range(20):
        clock.time += 0.1
        rate.started()
    assert rate.retry_after() == 1


def test_only_the_latest_starts_count() -> None:
    clock = Hand()
    rate = StartRate(clock)
    for _ in range(300):
        rate.arrived()
    for seconds in (10.0, 0.1):
        for _ in range(100):
            clock.time += seconds
            rate.started()
    assert rate.retry_after() == 10

"""A client whose answer takes long sees that it goes on, on a clock and an engine that the tests work by hand."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
from starlette.applications import Starlette

from scripted import CHAT_TEMPLATE, MEMORY
from serving import Caller, run
from sluice.engine.messages import Abort, Message, QueryStats, Stats
from sluice.engine.prompt_meter import PromptProgress
from sluice.http.app import create_app
from sluice.http.base.backend import Backend, Service
from sluice.http.base.calls import Call
from sluice.http.base.heartbeats import SILENT_SECONDS, Heartbeats
from sluice.http.base.progress import Progress, PromptQueries, together
from sluice.process.client import EngineClient
from sluice.process.engine_state import EngineState
from sluice.process.wire import Outputs
from sluice.text.tokenizer import Tokenizer
from sluice.types import FinishReason, Occupancy, Output, Submit
from sluice.types.request_limits import Limits
from tokenizer_makers import byte_tokenizer

MODEL = "patient"
SAID = [{"role": "user", "content": "hi"}]
COMMENT = b": waiting\n\n"
ROUTES: dict[str, dict[str, Any]] = {
    "/v1/completions": {"prompt": "ab"},
    "/v1/chat/completions": {"messages": SAID},
    "/v1/responses": {"input": "ab"},
    "/generate": {"text": "ab"},
    "/v1/messages": {"model": MODEL, "messages": SAID, "max_tokens": 9},
    "/api/chat": {"model": MODEL, "messages": SAID},
    "/api/generate": {"model": MODEL, "prompt": "ab"},
}


@dataclass
class Patient:
    """A server whose engine says what the test lets it say, when the test lets time pass."""

    app: Starlette
    heartbeats: Heartbeats
    client: EngineClient
    now: list[float]
    sent: list[Message] = field(default_factory=list)
    calls: list[Call] = field(default_factory=list)

    def answered(self, call: Call) -> None:
        self.calls.append(call)

    async def begin(self, path: str, last_event: str = "", **more: Any) -> Caller:
        """Begin a call, and return once its request is at the engine."""
        headers = [(b"last-event-id", last_event.encode())] if last_event else []
        caller = Caller(self, path, {"stream": True, **ROUTES[path], **more}, headers=headers)
        count = len(self.sent)
        while len(self.sent) == count and not caller.call.done():
            await asyncio.sleep(0)
        return caller

    def submitted(self) -> Submit:
        """The last request."""
        return next(message for message in reversed(self.sent) if isinstance(message, Submit))

    def answer_queries(self, read: int | None, left: float | None) -> None:
        """Let the engine say how far the last request's prompt is read; None: it has not begun."""
        request = self.submitted()
        prompts = () if read is None else (PromptProgress(request.request_id, read, len(request.prompt), left),)
        for query in [message for message in self.sent if isinstance(message, QueryStats)]:
            self.sent.remove(query)
            self.client.deliver(Stats(query.query_id, Occupancy(0, 0, 1, 0, 1), None, prompts=prompts))

    async def pass_seconds(self, seconds: float) -> None:
        """Let time pass, and then everything that it wakes."""
        self.now[0] += seconds
        self.heartbeats.beat()
        await settle()

    async def say(
        self, text: str, start: int = 0, *, ends: FinishReason | None = None, error: str | None = None
    ) -> None:
        """Let the engine bring tokens of the last request, each a byte."""
        request_id = self.submitted().request_id
        self.client.deliver(Outputs((Output(request_id, start, tuple(text.encode()), 0, ends, error),)))
        await settle()


async def settle() -> None:
    for _ in range(50):
        await asyncio.sleep(0)


def body_of(caller: Caller) -> list[bytes]:
    """The parts of the body that were sent since the last call."""
    parts = []
    while not caller.sent.empty():
        message = caller.sent.get_nowait()
        if message["type"] == "http.response.body" and message["body"]:
            parts.append(message["body"])
    return parts


@asynccontextmanager
async def patient(*, knows_progress: bool = True) -> AsyncIterator[Patient]:
    sent: list[Message] = []
    now = [100.0]
    client = EngineClient(sent.append)
    backend = Backend(EngineState())
    backend.engine.serving(os.getpid(), {})
    tokenizer = Tokenizer(byte_tokenizer(), chat_template=CHAT_TEMPLATE)
    limits = Limits(vocab_size=tokenizer.vocab_size, max_model_len=8192, max_total_tokens=8192)
    service = Service((MODEL,), tokenizer, limits, frozenset(), client, [], MEMORY)
    backend.open(service if knows_progress else replace(service, prompts=None))
    heartbeats = Heartbeats(lambda: now[0])
    calls: list[Call] = []
    server = Patient(Starlette(), heartbeats, client, now, sent, calls)
    server.app = create_app(backend, heartbeats=heartbeats, listeners=[server])
    yield server
    assert client.num_open == 0, "a request was left open"


@pytest.mark.parametrize("path", ROUTES)
def test_a_silent_stream_gets_its_headers_and_then_heartbeats(path: str) -> None:
    """A proxy, or an impatient client, that gives up before a long prompt is read."""

    async def test() -> None:
        async with patient() as server:
            caller = await server.begin(path)
            await server.pass_seconds(SILENT_SECONDS - 0.1)
            assert caller.sent.empty(), "a failure until now has a status of its own"
            for _ in range(3):
                await server.pass_seconds(SILENT_SECONDS)
                beat, *more = body_of(caller)
                assert not more
                if path.startswith("/api/"):
                    line = json.loads(beat)
                    assert line["done"] is False
                    assert (line["message"]["content"] if "message" in line else line["response"]) == ""
                elif path == "/v1/messages":
                    assert beat == b'event: ping\ndata: {"type":"ping"}\n\n'
                else:
                    assert beat == COMMENT
                await server.pass_seconds(SILENT_SECONDS - 0.1)
                assert caller.sent.empty()
            await server.say("hello", ends=FinishReason.LENGTH)
            await caller.call
            body = b"".join(body_of(caller))
            assert all(letter in body for letter in (b"h", b"e", b"l", b"o"))
            assert COMMENT not in body
            (call,) = server.calls
            assert call.status == 200
            assert call.streams

    run(test)


@pytest.mark.parametrize("path", ROUTES)
def test_a_failure_has_its_own_status_until_the_first_heartbeat(path: str) -> None:
    """A status sent at once would turn every refusal into a 200, which no client tries again."""

    async def test() -> None:
        async with patient() as server:
            caller = await server.begin(path)
            await server.pass_seconds(SILENT_SECONDS - 0.1)
            await server.say("", ends=FinishReason.OVERLOAD, error="full")
            assert (await caller.sent.get())["status"] == (529 if path == "/v1/messages" else 503)
            await caller.call
            late = await server.begin(path)
            await server.pass_seconds(SILENT_SECONDS)
            assert (await late.sent.get())["status"] == 200
            await server.say("", ends=FinishReason.OVERLOAD, error="full")
            await late.call
            beat, *rest = body_of(late)
            assert b"full" not in beat
            ending = b"".join(rest)
            assert b"full" in ending
            assert b"[DONE]" not in ending
            if path == "/v1/responses":  # OpenAI's client reads no end of a response that did not begin
                assert ending.index(b"event: response.created") < ending.index(b"event: response.failed")

    run(test)


def test_a_response_that_is_continued_fails_behind_the_events_that_its_client_has() -> None:
    """A second beginning, and numbers that were there before: OpenAI's client takes them for another response."""

    async def test() -> None:
        async with patient() as server:
            last_event = f"{'a' * 24}.5.7.00000000.4"
            options = {"include_event_ids": True}
            caller = await server.begin("/v1/responses", last_event, stream_options=options)
            await server.pass_seconds(SILENT_SECONDS)
            await server.say("", ends=FinishReason.ABORT, error="lost")
            await caller.call
            _, ending = body_of(caller)
            data = json.loads(ending.split(b"data: ")[1])
            assert (data["type"], data["sequence_number"]) == ("response.failed", 4)
            assert data["response"]["id"] == f"resp_{'a' * 24}"

    run(test)


def test_a_client_that_leaves_in_the_silence_is_noticed() -> None:
    """Noticed only at the next heartbeat or token, it would leave a long prefill running for no client."""

    async def test() -> None:
        async with patient() as server:
            for silence in (0.0, SILENT_SECONDS):
                caller = await server.begin("/v1/completions")
                await server.pass_seconds(silence)
                caller.leave()
                await caller.call
                assert isinstance(server.sent[-1], Abort)
                assert server.client.num_open == 0

    run(test)


def test_tokens_put_heartbeats_off() -> None:
    """Heartbeats between tokens that come every few seconds are of no use."""

    async def test() -> None:
        async with patient() as server:
            caller = await server.begin("/v1/completions")
            for index in range(4):
                await server.pass_seconds(SILENT_SECONDS - 0.1)
                await server.say("a", index)
            assert COMMENT not in body_of(caller)
            await server.pass_seconds(SILENT_SECONDS)
            assert body_of(caller) == [COMMENT]
            await server.say("a", 4, ends=FinishReason.LENGTH)
            await caller.call

    run(test)


def test_a_slow_client_gets_one_heartbeat_for_all_that_were_due() -> None:
    """A heartbeat for each tick would wait for it in memory, and hide the tokens behind them."""

    async def test() -> None:
        async with patient() as server:
            caller = await server.begin("/v1/completions")
            server.now[0] += SILENT_SECONDS
            for _ in range(5):
                server.heartbeats.beat()
            await settle()
            assert body_of(caller) == [COMMENT]
            await server.say("a", ends=FinishReason.LENGTH)
            await caller.call

    run(test)


def test_the_first_chunk_is_that_of_the_answer() -> None:
    """The time to the first token in logs and traces would be that of the first heartbeat."""

    async def test() -> None:
        async with patient() as server:
            caller = await server.begin("/v1/completions")
            await server.pass_seconds(SILENT_SECONDS)
            caller.leave()
            await caller.call
            assert server.calls[-1].first_chunk is None
            caller = await server.begin("/v1/completions")
            await server.pass_seconds(SILENT_SECONDS)
            await server.say("a", ends=FinishReason.LENGTH)
            await caller.call
            assert server.calls[-1].first_chunk is not None

    run(test)


def test_an_answer_in_one_piece_gets_none() -> None:
    """JSON has no place for them."""

    async def test() -> None:
        async with patient() as server:
            caller = await server.begin("/v1/completions", stream=False)
            await server.pass_seconds(10 * SILENT_SECONDS)
            assert caller.sent.empty()
            await server.say("abc", ends=FinishReason.LENGTH)
            await caller.call
            (body,) = body_of(caller)
            assert json.loads(body)["choices"][0]["text"] == "abc"

    run(test)


def test_time_alone_wakes_them(monkeypatch: pytest.MonkeyPatch) -> None:
    """Heartbeats that nothing calls. A timer that stays when no stream is open would keep a loop busy for ever."""
    monkeypatch.setattr("sluice.http.base.heartbeats.TICK_SECONDS", 0.0)

    async def test() -> None:
        now, woken = [0.0], asyncio.Event()
        heartbeats = Heartbeats(lambda: now[0])
        with heartbeats.watch(woken.set) as silence:
            now[0] = SILENT_SECONDS
            await woken.wait()
            assert silence.is_due
            heartbeats.sent(silence)
            assert not silence.is_due
        woken.clear()
        now[0] *= 3.0
        await settle()
        assert not woken.is_set()
        assert heartbeats.is_resting

    run(test)


@pytest.mark.parametrize("path", ["/v1/completions", "/v1/chat/completions"])
@pytest.mark.parametrize("usage", [True, False])
def test_a_client_that_asks_sees_how_far_its_prompt_is_read(path: str, usage: bool) -> None:
    """One event a second until the first token, with what the engine says, and none for those who do not ask."""

    async def test() -> None:
        async with patient() as server:
            options = {"include_progress": True, "include_usage": usage}
            caller = await server.begin(path, stream_options=options)
            total = len(server.submitted().prompt)
            await server.pass_seconds(0.9)
            assert caller.sent.empty()
            seen = []
            for read, left in ((None, None), (1, None), (2, 3.25)):
                await server.pass_seconds(1.0)
                server.answer_queries(read, left)
                await settle()
                (event,) = body_of(caller)
                seen.append(json.loads(event.removeprefix(b"data: ")))
            await server.say("a")
            await server.pass_seconds(1.0)
            assert not any(isinstance(each, QueryStats) for each in server.sent)
            await server.say("b", 1, ends=FinishReason.LENGTH)
            await caller.call
            for event, (read, left) in zip(seen, ((0, None), (1, None), (2, 3.25)), strict=True):
                assert event["choices"] == []
                assert event["progress"] == {
                    "prompt_tokens_read": read,
                    "prompt_tokens": total,
                    "seconds_left": left,
                }
                assert ("usage" in event) == usage
            assert b"progress" not in b"".join(body_of(caller))

    run(test)


@pytest.mark.parametrize("path", ["/v1/completions", "/v1/chat/completions"])
def test_progress_goes_on_when_the_engine_answers_late(path: str) -> None:
    """The timer wakes the stream again while it waits for the engine: that is neither a token nor a second event."""

    async def test() -> None:
        async with patient() as server:
            caller = await server.begin(path, stream_options={"include_progress": True})
            for read in (1, 2, 2):
                await server.pass_seconds(1.0)
                await server.pass_seconds(0.4)
                assert caller.sent.empty(), "the engine has not answered"
                server.answer_queries(read, None)
                await settle()
                (event,) = body_of(caller)
                assert json.loads(event.removeprefix(b"data: "))["progress"]["prompt_tokens_read"] == read
            await server.say("a", ends=FinishReason.LENGTH)
            await caller.call
            body = b"".join(body_of(caller))
            assert b'"a"' in body
            assert (b'"role":"assistant"' in body) == ("chat" in path)

    run(test)


@pytest.mark.parametrize("path", ["/v1/completions", "/v1/chat/completions"])
def test_progress_that_is_not_known_is_refused(path: str) -> None:
    """Events that say for ever that nothing is read are worse than none."""

    async def test() -> None:
        async with patient(knows_progress=False) as server:
            caller = await server.begin(path, stream_options={"include_progress": True})
            await caller.call
            assert (await caller.sent.get())["status"] == 400
            assert b"stream_options.include_progress is not supported by a fleet" in b"".join(body_of(caller))
            caller = await server.begin(path, stream_options={"include_progress": False})
            await server.say("a", ends=FinishReason.LENGTH)
            await caller.call
            assert (await caller.sent.get())["status"] == 200

    run(test)


def test_progress_of_several_prompts_is_that_of_all_of_them() -> None:
    """Samples share a prompt; prompts whose answer has begun are read; one that was not begun may take any time."""
    known = [PromptProgress(1, 10, 40, 2.0), PromptProgress(3, 20, 50, 5.0)]
    assert together([(1, 40, False), (3, 50, False)], known) == Progress(30, 90, 5.0)
    assert together([(1, 40, False), (2, 60, True)], known) == Progress(70, 100, 2.0)
    assert together([(1, 40, False), (2, 60, False)], known) == Progress(10, 100, None)


def test_progress_does_not_wait_for_an_engine_that_does_not_answer() -> None:
    """The last answer counts; an engine that died has none, and a comment goes in its place."""

    async def test() -> None:
        async with patient() as server:
            caller = await server.begin("/generate")
            queries = PromptQueries()
            asking = [asyncio.create_task(queries.prompts(server.client)) for _ in range(3)]
            await settle()
            assert sum(isinstance(each, QueryStats) for each in server.sent) == 1
            server.answer_queries(1, None)
            assert [len(each) for each in await asyncio.gather(*asking)] == [1, 1, 1]
            asking = [asyncio.create_task(queries.prompts(server.client))]
            await settle()
            server.client.detach("died", ())
            assert await asking[0] == ()
            caller.leave()
            await caller.call

    run(test)

"""A whole measurement over real sockets: of Sluice's own server, and of servers that misbehave."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest

from bench_makers import ManualTimer
from serving import MODEL, Server, run, serving
from shadow_engine import PAGE_SIZE, VOCAB
from sluice.bench import BenchError
from sluice.bench.command import checked_options
from sluice.bench.driver import Timer
from sluice.bench.http import exchange, find_server
from sluice.bench.measure import announced, measure_in_turns, measure_server, workload_of
from sluice.bench.metrics import summarize
from sluice.bench.options import options_from
from sluice.bench.records import CountedBy
from sluice.bench.results import BenchResult
from sluice.config import ConfigError
from sluice.http.edge.http_server import HttpServer
from sse_server import MODELS, Call, Handler, scripted, stream_at_once


@asynccontextmanager
async def on_a_port(server: Server) -> AsyncIterator[str]:
    """The application behind a real socket."""
    listener = socket.create_server(("127.0.0.1", 0))
    http = HttpServer.of(server.app)
    task = asyncio.create_task(http.serve(sockets=[listener]))
    try:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
    finally:
        http.should_exit = True
        await task


async def measure(url: str, **given: Any) -> BenchResult:
    return await measure_server(url, options_from({"num_requests": 4, "max_new_tokens": 5} | given))


@pytest.mark.parametrize("endpoint", ["completions", "chat"])
async def test_every_token_of_sluices_server_is_seen(endpoint: str) -> None:
    async with serving() as server, on_a_port(server) as url:
        result = await measure(
            url, endpoint=endpoint, prompt_tokens="uniform:3:9", vocab_size=VOCAB, ignore_eos=True, repeats=2
        )
        assert result.target["model"] == MODEL
        assert result.target["server_info"]["model"] == MODEL
        assert len(result.runs) == 2
        for run in result.runs:
            found = summarize(run.requests)
            assert (found.requests, found.failed, found.output_tokens) == (4, 0, 20)
            assert found.all.itl.count == 16
            assert {record.counted_by for record in run.requests} == {CountedBy.USAGE}
            assert all(record.finish_reason == "length" for record in run.requests)
            for record in run.requests:
                assert record.accepted is not None
                assert 0 <= record.due <= record.sent <= record.accepted <= record.arrivals[0].at <= record.ended


async def test_prompts_have_the_length_that_was_asked_for() -> None:
    async with serving() as server, on_a_port(server) as url:
        result = await measure(url, prompt_tokens="9", shared_prefix_tokens=8, vocab_size=VOCAB, concurrency=1)
        assert [record.prompt_tokens for record in result.runs[0].requests] == [17] * 4
        # All but the first find the shared prefix; the warm-up has another one.
        assert [record.cached_tokens for record in result.runs[0].requests] == [0, 8, 8, 8]


async def test_a_conversation_finds_its_history_in_the_cache() -> None:
    """A history that is not sent as it was answered is computed again, and the measurement is of that."""
    async with serving() as server, on_a_port(server) as url:
        result = await measure(url, turns=3, prompt_tokens="2", num_requests=1, ignore_eos=True)
        first, second, third = result.runs[0].requests
        assert first.cached_tokens == 0
        assert (second.cached_tokens or 0) >= first.prompt_tokens // PAGE_SIZE * PAGE_SIZE > 0
        assert (third.cached_tokens or 0) >= second.prompt_tokens // PAGE_SIZE * PAGE_SIZE


async def test_interference_with_restarting_decoders() -> None:
    async with serving() as server, on_a_port(server) as url:
        result = await measure(
            url,
            preset="interference",
            num_requests=2,
            at_ms="1,40",
            prompt_tokens="100",
            background_prompt_tokens="5",
            background_output_tokens="9",
            vocab_size=VOCAB,
        )
        found = summarize(result.runs[0].requests)
        assert found.by_kind["long"].requests == 2
        assert found.by_kind["short"].requests >= 4
        assert found.failed == 0
        assert 1 <= found.windows <= 2


async def test_a_server_measured_against_itself_gets_new_prompts() -> None:
    """The second side would be served from the cache that the first side filled, and win."""
    async with serving() as server, on_a_port(server) as url:
        options = options_from(
            {"num_requests": 2, "max_new_tokens": 3, "prompt_tokens": "9", "vocab_size": VOCAB, "repeats": 2}
        )
        results = await measure_in_turns([url, url], options)
        cached = [record.cached_tokens for found in results for one in found.runs for record in one.requests]
        assert cached == [0] * 8


async def test_two_servers_get_the_same_prompts_in_turns() -> None:
    async with scripted() as one, scripted() as other:
        options = options_from({"num_requests": 2, "concurrency": 1, "max_new_tokens": 3, "repeats": 2})
        results = await measure_in_turns([one.url, other.url], options)
        prompts = [[call.body["prompt"] for call in server.calls] for server in (one, other)]
        assert prompts[0] == prompts[1]
        assert len(set(map(tuple, prompts[0]))) == 1 + 2 * 2
        assert [len(result.runs) for result in results] == [2, 2]


def check(handler: Handler, test: Callable[[str], Any], *, models: Any = MODELS) -> None:
    async def body() -> None:
        async with scripted(handler) as server:
            server.models = models
            await test(server.url)

    run(body)


def refused(handler: Handler, said: str, error: type[Exception] = BenchError, **given: Any) -> None:
    async def test(url: str) -> None:
        with pytest.raises(error) as caught:
            await measure(url, **given)
        assert said in str(caught.value)

    check(handler, test)


async def whole_answer(call: Call) -> None:
    call.chunked = False
    await call.head(200, "application/json")
    await call.raw(b'{"choices": [{"text": "all of it"}]}')


async def one_event(call: Call) -> None:
    await call.head()
    await call.text("all of it", finish="length")
    await call.end(completion_tokens=5)


async def breaks_midway(call: Call) -> None:
    await call.head()
    await call.text("a")
    await call.text("b")


async def says_error(call: Call) -> None:
    await call.head()
    await call.text("a")
    await call.event({"error": {"message": "out of memory"}})


async def hangs_up(call: Call) -> None:
    call.writer.transport.abort()


async def is_full(call: Call) -> None:
    await call.head(503, "application/json")
    await call.chunk(b'{"error": {"message": "the queue is full"}}')
    await call.chunk(b"")


@pytest.mark.parametrize(
    ("handler", "said"),
    [
        (whole_answer, "does not stream: it answered application/json"),
        (one_event, "does not stream: 5 tokens came in one event"),
        (breaks_midway, "broken stream: the stream broke off"),
        (says_error, "error event: out of memory"),
        (is_full, "HTTP 503: the queue is full"),
        (hangs_up, "connection: "),
    ],
)
def test_a_warm_up_that_fails_says_why_and_nothing_is_measured(handler: Handler, said: str) -> None:
    refused(handler, said)


@pytest.mark.parametrize("kind", ["broken stream", "HTTP 503", "connection", "error event"])
def test_requests_that_fail_in_a_run_are_counted_by_kind(kind: str) -> None:
    bad = {"broken stream": breaks_midway, "HTTP 503": is_full, "connection": hangs_up, "error event": says_error}[kind]

    async def every_second(call: Call) -> None:
        await (bad if call.number % 2 else stream_at_once)(call)

    async def test(url: str) -> None:
        result = await measure(url, warmup=0, concurrency=1)
        requests = result.runs[0].requests
        assert [record.failure and record.failure.kind for record in requests] == [None, kind, None, kind]
        assert summarize(requests).all.e2e.count == 2

    check(every_second, test)


def test_tokens_in_one_event_are_counted() -> None:
    async def in_pairs(call: Call) -> None:
        await call.head()
        for finish in (None, None, "length"):
            await call.text("ab", finish=finish, token_ids=[7, 8])
        await call.end(completion_tokens=6)

    async def test(url: str) -> None:
        result = await measure(url, max_new_tokens=6)
        found = summarize(result.runs[0].requests)
        assert (found.output_tokens, found.bundled_events, found.events) == (24, 12, 12)

    check(in_pairs, test)


def test_a_server_that_never_answers_times_out() -> None:
    async def never(call: Call) -> None:
        await asyncio.Event().wait()

    async def test(url: str) -> None:
        result = await measure(url, warmup=0, timeout_s=0.02, num_requests=1)
        (record,) = result.runs[0].requests
        assert record.failure is not None
        assert record.failure.kind == "timeout"
        assert record.ended - record.sent >= 0.02

    check(never, test)


def test_an_answer_with_a_length_ends_with_it() -> None:
    """A server that keeps the connection open all the same must not be waited for."""

    async def keeps_open(call: Call) -> None:
        data = b"data: [DONE"
        call.chunked = False
        await call.head(extra=f"Content-Length: {len(data)}\r\n")
        await call.raw(data)
        await asyncio.Event().wait()

    async def test(url: str) -> None:
        server = await find_server(url)
        raw = await exchange(server, server.request("POST", "/v1/completions", b"{}"), Timer(), timeout=20)
        assert raw.failure is None
        assert raw.reads

    check(keeps_open, test)


@pytest.mark.parametrize(
    ("models", "given", "said"),
    [
        ({"data": [{"id": "a"}, {"id": "b"}]}, {}, "several models: 'a', 'b'; choose by --model-name"),
        ({"data": [{"id": "a"}]}, {"model_name": "c"}, "has no model 'c'; it has 'a'"),
        ({"data": []}, {}, "lists no model (HTTP 200); name one by --model-name"),
        ("nothing", {}, "lists no model"),
    ],
)
def test_models_that_cannot_be_chosen(models: Any, given: dict[str, Any], said: str) -> None:
    async def test(url: str) -> None:
        with pytest.raises(BenchError) as error:
            await measure(url, **given)
        assert said in str(error.value)

    check(stream_at_once, test, models=models)


@pytest.mark.parametrize("models", [{"data": [{"id": "a"}, {"id": "b"}]}, {"data": []}])
async def test_a_model_can_be_named(models: Any) -> None:
    async with scripted() as server:
        server.models = models
        result = await measure(f"{server.url}/v1/", model_name="b", api_key="secret")
        assert result.target["model"] == "b"
        assert {call.body["model"] for call in server.calls} == {"b"}
        assert {call.headers["authorization"] for call in server.calls} == {"Bearer secret"}
        assert "secret" not in str(result)


async def test_what_is_sent() -> None:
    async with scripted() as server:
        await measure(server.url, temperature=0.5, ignore_eos=True, prompt_tokens="3", warmup=0, num_requests=1)
        await measure(server.url, prompt_tokens="3", prompt_format="text", warmup=0, num_requests=1)
        await measure(server.url, prompt_tokens="3", endpoint="chat", warmup=0, num_requests=1)
        ids, text, chat = (call.body for call in server.calls)
        assert [call.path for call in server.calls] == ["/v1/completions"] * 2 + ["/v1/chat/completions"]
        assert (ids["max_tokens"], ids["temperature"], ids["stream"]) == (5, 0.5, True)
        assert ids["stream_options"] == {"include_usage": True}
        assert ids["ignore_eos"] is True
        assert len(ids["prompt"]) == 3
        # Servers of others refuse fields that they do not know.
        assert "ignore_eos" not in text
        assert len(text["prompt"].split()) == 3
        assert chat["messages"] == [{"role": "user", "content": text["prompt"]}]


async def test_a_server_that_is_not_there() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    with pytest.raises(BenchError, match=f"cannot reach http://127.0.0.1:{port}: connection refused"):
        await measure(f"http://127.0.0.1:{port}")


@pytest.mark.parametrize(
    "url", ["localhost:8000", "ftp://a", "http://", "http://a:b", "http://a:99999", "http://a b", ""]
)
async def test_urls_that_are_none(url: str) -> None:
    with pytest.raises(ConfigError, match="--url must be like http://localhost:8000"):
        await measure(url)


async def test_a_name_that_does_not_resolve() -> None:
    with pytest.raises(BenchError, match=r"cannot find name\.invalid"):
        await measure("http://name.invalid")


async def test_waiting_for_a_time_that_is_over_returns_at_once() -> None:
    timer = Timer()
    await timer.until(timer.now() - 5)
    manual = ManualTimer()
    manual.advance(3.0)
    await manual.until(2.0)


async def test_tls_to_a_server_without() -> None:
    async def plain(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(1)
        writer.write(b"HTTP/1.1 400 Bad Request\r\n\r\n")
        writer.close()

    server = await asyncio.start_server(plain, "127.0.0.1", 0)
    async with server:
        port = server.sockets[0].getsockname()[1]
        with pytest.raises(BenchError, match=r"cannot reach https://.*: TLS: "):
            await measure(f"https://127.0.0.1:{port}")


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (
            {"preset": "interference"},
            "2 requests, the last one is sent after 8 s, 4 streams beside them until all are answered; before them 1 to"
            " warm up",
        ),
        ({"num_requests": 9, "warmup": 0, "repeats": 3}, "9 requests, 4 at a time, 3 times"),
    ],
)
def test_what_will_be_sent_is_said_before(given: dict[str, Any], said: str) -> None:
    """Someone at a terminal wants to know whether to wait."""
    options = checked_options(given)
    assert announced(workload_of(options, 0), options) == f"sluice bench: {said}"

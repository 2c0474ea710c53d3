"""Streams that were cut and are asked for again from their last event."""

from __future__ import annotations

import contextlib
import json
import re
import signal
from typing import Any

import httpx
import pytest

from any_checkpoint import any_checkpoint
from processes import free_port
from scripted import Scripted, scripted
from serve_process import announced, server
from serving import Server, run, serving

COMPLETIONS, CHAT, RESPONSES = "/v1/completions", "/v1/chat/completions", "/v1/responses"
MESSAGES, GENERATE, TOKENS = "/v1/messages", "/generate", "/inference/v1/generate"
IDS = {"stream": True, "stream_options": {"include_event_ids": True}}
TEXT: dict[str, Any] = {"prompt": "The water", "max_tokens": 12, "temperature": 1.0, **IDS}
TALK: dict[str, Any] = {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 12, "temperature": 1.0, **IDS}
SAID: dict[str, Any] = {"model": "shadow", "messages": [{"role": "user", "content": "hi"}], **IDS}
INPUT: dict[str, Any] = {"input": "hi", "max_output_tokens": 12, "temperature": 1.0, **IDS}
NATIVE: dict[str, Any] = {"text": "The water", "sampling_params": {"max_new_tokens": 12}, **IDS}
IDS_IN: dict[str, Any] = {"token_ids": [5, 6, 7], "sampling_params": {"max_tokens": 12}, **IDS}
CHANGES = (
    *("e2e_latency", "completed_at", "cached_tokens", "cached_tokens_details", "prompt_tokens_details"),
    *("input_tokens", "input_tokens_details", "cache_read_input_tokens"),
)
"""What the time and the cache of a server decide."""
SCHEMA = {"type": "object", "properties": {"city": {"type": "string"}}}
CALLS = (
    'Well.<tool_call>\n{"name": "weather", "arguments": {"city": "Ulm"}}\n</tool_call>\n'
    '<tool_call>\n{"name": "weather", "arguments": {"city": "Linz"}}\n</tool_call>'
)
Event = tuple[str, dict[str, Any]]


def events_of(text: str) -> list[Event]:
    """Return the ids and the data of a stream that ended well."""
    *blocks, rest = text.split("\n\n")
    assert rest == ""
    found = []
    for block in blocks:
        lines = dict(line.split(": ", 1) for line in block.split("\n"))
        if lines["data"] == "[DONE]":
            assert block is blocks[-1]
            break
        found.append((lines["id"], json.loads(lines["data"])))
    else:
        assert not found or found[-1][1]["type"] in ("response.completed", "response.incomplete", "message_stop")
    return found


def lasting(value: Any) -> Any:
    """Return what two servers say alike of JSON."""
    if isinstance(value, dict):
        return {name: lasting(item) for name, item in value.items() if name not in CHANGES}
    return [lasting(item) for item in value] if isinstance(value, list | tuple) else value


async def asked(server: Server | Scripted, path: str, body: dict[str, Any], last: str = "") -> httpx.Response:
    return await server.http.post(path, json=body, headers={"Last-Event-ID": last} if last else {})


@pytest.mark.parametrize(
    ("path", "body"),
    [
        (COMPLETIONS, TEXT),
        (COMPLETIONS, TEXT | {"logprobs": 2, "return_token_ids": True}),
        (COMPLETIONS, TEXT | {"seed": 3, "stop": ["e", "zz"]}),
        (CHAT, TALK),
        (CHAT, TALK | {"stream_options": {"include_event_ids": True, "include_usage": True}}),
        (RESPONSES, INPUT),
        (RESPONSES, INPUT | {"top_logprobs": 1}),
        (MESSAGES, SAID | {"max_tokens": 12}),
        (GENERATE, NATIVE),
        (GENERATE, NATIVE | {"return_logprob": True, "logprob_start_len": 0, "top_logprobs_num": 1}),
        (TOKENS, IDS_IN),
    ],
)
def test_the_rest_of_a_stream_is_asked_for_at_another_server(path: str, body: dict[str, Any]) -> None:
    """Its events are those that the first one would have sent: the seed, the id and the time are theirs."""

    async def test() -> None:
        async with serving() as first, serving() as second:
            whole = events_of((await asked(first, path, body)).text)
            assert len({id for id, _ in whole}) == len(whole) > 3
            for number, (id, _) in enumerate(whole, 1):
                rest = events_of((await asked(second, path, body, id)).text)
                assert lasting(rest) == lasting(whole[number:])

    run(test)


@pytest.mark.parametrize(
    ("path", "body"),
    [
        (CHAT, TALK | {"tools": [{"type": "function", "function": {"name": "weather", "parameters": SCHEMA}}]}),
        (RESPONSES, INPUT | {"tools": [{"type": "function", "name": "weather", "parameters": SCHEMA}]}),
        (MESSAGES, SAID | {"model": "scripted", "tools": [{"name": "weather", "input_schema": SCHEMA}]}),
    ],
)
def test_calls_of_tools_keep_their_ids(path: str, body: dict[str, Any]) -> None:
    """The result of a tool names the call, whose beginning came from one server and its end from another."""

    async def test() -> None:
        async with scripted(CALLS) as first, scripted(CALLS) as second:
            body["max_tokens" if path != RESPONSES else "max_output_tokens"] = 500
            whole = events_of((await asked(first, path, body)).text)
            assert len({*re.findall("call_[0-9a-f]{24}", json.dumps(whole))}) == 2
            for number, (id, _) in enumerate(whole, 1):
                rest = events_of((await asked(second, path, body, id)).text)
                assert lasting(rest) == lasting(whole[number:])

    run(test)


def test_a_response_that_is_continued_is_stored_once() -> None:
    """Its bytes count once, or the store would forget others; and nobody writes over the response of another."""

    async def test() -> None:
        async with serving(api_keys={"a", "b"}) as server:
            mine, theirs = ({"Authorization": f"Bearer {key}"} for key in "ab")
            whole = events_of((await server.http.post(RESPONSES, json=INPUT, headers=mine)).text)
            last, url = {"Last-Event-ID": whole[-2][0]}, f"{RESPONSES}/{whole[0][1]['response']['id']}"
            stored = (await server.http.get(url, headers=mine)).json()
            for key in (mine, theirs):
                (end,) = events_of((await server.http.post(RESPONSES, json=INPUT, headers=last | key)).text)
                assert end[1]["response"]["output"] == stored["output"]
            assert (await server.http.get(url, headers=theirs)).status_code == 404
            assert lasting((await server.http.get(url, headers=mine)).json()) == lasting(stored)

    run(test)


def test_another_stream_is_not_continued() -> None:
    """What was sent and what follows would not fit together."""

    async def test() -> None:
        async with serving() as server:
            id, _ = events_of((await asked(server, COMPLETIONS, TEXT)).text)[6]
            start, _, number = id.rpartition(".")
            for body, last in [
                (TEXT | {"prompt": "The lake"}, id),
                (TEXT | {"max_tokens": 3}, id),
                (TEXT, f"{start}.{int(number) + 1}"),
                (TEXT, f"{start}.{int(number) + 100}"),
            ]:
                answer = await asked(server, COMPLETIONS, body, last)
                assert (answer.status_code, answer.json()["error"]["code"]) == (409, "stream_changed")

    run(test)


def test_what_cannot_have_ids_is_refused() -> None:
    async def test() -> None:
        async with serving() as server:
            id, _ = events_of((await asked(server, COMPLETIONS, TEXT)).text)[2]
            for body, last, part in [
                (TEXT | {"n": 2}, "", "a call of one choice"),
                (TEXT | {"prompt": ["a", "b"]}, "", "a call of one choice"),
                (TEXT, "17", "must be the id of an event of a stream, got '17'"),
                (TEXT | {"stream_options": {}}, id, "include_event_ids"),
                (TEXT | {"stream": False}, id, "include_event_ids"),
            ]:
                answer = await asked(server, COMPLETIONS, body, last)
                assert answer.status_code == 400
                assert part in answer.json()["error"]["message"]
            plain = await asked(server, COMPLETIONS, TEXT | {"stream_options": None})
            assert "id: " not in plain.text

    run(test)


@pytest.mark.slow
def test_a_stream_goes_on_after_its_server_was_killed() -> None:
    """Real processes: the first server is killed in the middle of a stream, and the second one sends the rest."""
    ports = free_port(), free_port()
    body = {"prompt": [5, 6, 7], "max_tokens": 200, "ignore_eos": True, "temperature": 1.0, **IDS}

    def command(port: int) -> tuple[str, ...]:
        return ("-m", "sluice", "serve", str(any_checkpoint()), "--port", str(port), "--max-total-tokens", "4096")

    with server(*command(ports[0])) as first, server(*command(ports[1])) as second:
        announced(first)
        announced(second)
        got = ""
        url = f"http://127.0.0.1:{ports[0]}{COMPLETIONS}"
        with contextlib.suppress(httpx.HTTPError), httpx.stream("POST", url, json=body, timeout=60) as stream:
            for text in stream.iter_text():
                got += text
                if len(got) > 2000 and first.poll() is None:
                    first.send_signal(signal.SIGKILL)
                    first.wait()
        assert first.poll() is not None
        blocks = got[: got.rindex("\n\n") + 2]  # what is left of the last event is of no use
        seen = events_of(blocks + "data: [DONE]\n\n")
        url = f"http://127.0.0.1:{ports[1]}{COMPLETIONS}"
        rest = events_of(httpx.post(url, json=body, headers={"Last-Event-ID": seen[-1][0]}, timeout=60).text)
        again = events_of(httpx.post(url, json=body, headers={"Last-Event-ID": seen[0][0]}, timeout=60).text)
        assert 5 < len(seen) < 200
        assert seen[1:] + rest == again
        assert len(seen + rest) == 200

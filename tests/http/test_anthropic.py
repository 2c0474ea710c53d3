"""Anthropic's API: what its clients send, and what they read."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from agent_apis import events_of, message_of
from serving import MODEL, Caller, Server, expected_text, run, serving
from sluice.engine.messages import Submit
from sluice.testing import Faults

MESSAGES, COUNT = "/v1/messages", "/v1/messages/count_tokens"
HI = [{"role": "user", "content": "hi"}]
PROMPT = "user: hi\n"
"""What the test's chat template makes of `HI`."""


def served(test: Callable[[Server], Awaitable[None]], **options: Any) -> None:
    """Run a test with a server."""

    async def whole() -> None:
        async with serving(**options) as server:
            await test(server)

    run(whole)


async def answered(server: Server, **body: Any) -> dict[str, Any]:
    """The answer to a call that must succeed."""
    answer = await server.post(MESSAGES, **{"model": MODEL, "max_tokens": 12, "messages": HI, "seed": 0, **body})
    assert answer.status_code == 200, answer.text
    content: dict[str, Any] = answer.json()
    return content


def text(message: dict[str, Any]) -> str:
    return "".join(block["text"] for block in message["content"])


def prompt_of(server: Server) -> str:
    """The prompt of the last request at the engine."""
    return bytes([message for message in server.sent if isinstance(message, Submit)][-1].prompt).decode()


def test_a_message() -> None:
    async def test(server: Server) -> None:
        message = await answered(server)
        assert message["content"] == [{"type": "text", "text": expected_text(PROMPT, 12)}]
        assert (message["type"], message["role"], message["model"]) == ("message", "assistant", MODEL)
        assert (message["stop_reason"], message["stop_sequence"]) == ("max_tokens", None)
        assert message["id"].startswith("msg_")
        usage = message["usage"]
        assert usage["input_tokens"] + usage["cache_read_input_tokens"] == len(PROMPT)
        assert usage["output_tokens"] == 12

    served(test)


def test_a_stream_adds_up_to_the_same_message() -> None:
    async def test(server: Server) -> None:
        body: dict[str, Any] = {"model": MODEL, "max_tokens": 12, "messages": HI, "seed": 0}
        events = await events_of(server, MESSAGES, **body)
        whole, streamed = await answered(server), message_of(events)
        for message in (whole, streamed):
            del message["id"], message["usage"]
        assert streamed == whole
        assert sum(event["type"] == "content_block_delta" for event in events) == 12, "an event for each token"
        assert events[1] == {"type": "ping"}

    served(test)


def test_cached_tokens_are_counted_apart() -> None:
    """Clients add them to `input_tokens`: counted twice, a context looks full."""

    async def test(server: Server) -> None:
        long = [{"role": "user", "content": "a" * 60}]
        first = (await answered(server, messages=long, max_tokens=1))["usage"]
        second = (await answered(server, messages=long, max_tokens=1))["usage"]
        assert (first["cache_read_input_tokens"], second["cache_creation_input_tokens"]) == (0, 0)
        assert second["cache_read_input_tokens"] > 0
        assert first["input_tokens"] == second["input_tokens"] + second["cache_read_input_tokens"]

    served(test)


@pytest.mark.parametrize(
    ("body", "prompt"),
    [
        ({"system": "be"}, f"system: be\n{PROMPT}"),
        ({"system": [{"type": "text", "text": "be", "cache_control": {"type": "ephemeral"}}]}, f"system: be\n{PROMPT}"),
        (
            {
                "system": [
                    {"type": "text", "text": "x-anthropic-billing-header: cc_version=2.1; cch=fa690;"},
                    {"type": "text", "text": "be"},
                ]
            },
            f"system: be\n{PROMPT}",
        ),
        (
            {"messages": [{"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]}]},
            "user: a\nb\n",
        ),
        (
            {"messages": [*HI, {"role": "user", "content": "ho"}]},
            "user: hi\nho\n",
        ),
        (
            {
                "messages": [
                    *HI,
                    {
                        "role": "assistant",
                        "content": [
                            {"type": "thinking", "thinking": "hm", "signature": "s"},
                            {"type": "text", "text": "let me see"},
                            {"type": "tool_use", "id": "t1", "name": "look", "input": {"at": 1}},
                        ],
                    },
                    {
                        "role": "user",
                        "content": [
                            {"type": "tool_result", "tool_use_id": "t1", "content": "4"},
                            {"type": "tool_result", "tool_use_id": "t2", "content": [{"type": "text", "text": "5"}]},
                            {"type": "text", "text": "so?"},
                        ],
                    },
                ]
            },
            f"{PROMPT}assistant: let me see\ntool: 4\ntool: 5\nuser: so?\n",
        ),
        (
            {
                "messages": [
                    *HI,
                    {"role": "assistant", "content": [{"type": "tool_use", "id": "t1", "name": "look", "input": {}}]},
                    {
                        "role": "user",
                        "content": [{"type": "tool_result", "tool_use_id": "t1", "content": "no", "is_error": True}],
                    },
                ]
            },
            f"{PROMPT}assistant: \ntool: Error: no\n",
        ),
    ],
)
def test_messages_become_a_chat(body: dict[str, Any], prompt: str) -> None:
    """A lost block, or one in the wrong order, is another conversation."""

    async def test(server: Server) -> None:
        await answered(server, max_tokens=1, **body)
        assert prompt_of(server) == prompt

    served(test)


def test_a_last_message_of_the_assistants_is_continued() -> None:
    async def test(server: Server) -> None:
        await answered(server, max_tokens=1, messages=[*HI, {"role": "assistant", "content": "I say"}])
        assert prompt_of(server) == f"{PROMPT}assistant: I say"

    served(test)


def test_why_it_ended() -> None:
    async def test(server: Server) -> None:
        whole = expected_text(PROMPT, 12)
        stopped = await answered(server, stop_sequences=[whole[5:7], "never"])
        assert (stopped["stop_reason"], stopped["stop_sequence"]) == ("stop_sequence", whole[5:7])
        assert text(stopped) == whole[:5]
        ended = await answered(server, stop_token_ids=[ord(whole[3])])
        assert (ended["stop_reason"], ended["stop_sequence"]) == ("end_turn", None)
        full = await answered(server, max_tokens=32000)
        assert full["stop_reason"] == "model_context_window_exceeded", "a client's usual limit is above small contexts"
        assert full["usage"]["output_tokens"] == server.backend.service().limits.max_request_tokens - len(PROMPT)

    served(test)


def test_an_answer_without_text_has_no_block() -> None:
    async def test(server: Server) -> None:
        first = expected_text(PROMPT, 1)
        body: dict[str, Any] = {"stop_sequences": [first]}
        assert (await answered(server, **body))["content"] == []
        events = await events_of(server, MESSAGES, model=MODEL, max_tokens=3, messages=HI, seed=0, **body)
        assert message_of(events)["stop_sequence"] == first

    served(test)


def test_tokens_are_counted_without_an_answer() -> None:
    async def test(server: Server) -> None:
        answer = await server.post(COUNT, model=MODEL, messages=HI, system="be")
        assert answer.json() == {"input_tokens": len(f"system: be\n{PROMPT}")}
        assert server.sent == []

    served(test)


BAD: list[tuple[dict[str, Any], str]] = [
    ({"max_tokens": None}, "max_tokens is required"),
    ({"max_tokens": 0}, "max_tokens must be an integer of at least 1, got 0"),
    ({"model": ""}, "model is required"),
    ({"messages": []}, "messages must hold at least one message"),
    ({"messages": [{"role": "owl", "content": "hi"}]}, "messages[0].role must be user or assistant, got 'owl'"),
    ({"messages": [{"role": "user", "content": [{"type": "image", "source": {}}]}]}, "'image' is not supported"),
    ({"messages": [{"role": "user", "content": [{"type": "document"}]}]}, "messages[0].content[0].type 'document'"),
    ({"messages": [{"role": "user", "content": [{"type": "tool_use"}]}]}, "accepted: text, tool_result"),
    ({"messages": [{"role": "user", "content": [5]}]}, "messages[0].content[0] must be an object"),
    ({"messages": [*HI, {"role": "assistant", "content": " "}]}, "it is continued, so it must end with a text"),
    ({"stop_sequences": ["a"] * 17}, "stop_sequences may hold at most 16 strings"),
    ({"stop": "a"}, "send stop_sequences"),
    ({"thinking": {"type": "enabled", "budget_tokens": 5}}, "thinking.budget_tokens must be at least 1024, got 5"),
    ({"thinking": {"type": "much"}}, "thinking.type 'much' is not supported; accepted: enabled, adaptive, disabled"),
    ({"context_management": {"edits": [{"type": "clear_tool_uses_20250919"}]}}, "context_management.edits[0]"),
    ({"mcp_servers": [{"url": "x"}]}, "mcp_servers is not supported"),
    ({"container": "x"}, "container is not supported"),
    ({"n": 2}, "n: invalid enum value 2; accepted: 1"),
    ({"max_token": 2}, "did you mean max_tokens"),
    ({"messages": [{"role": "user", "content": "h" * 300}]}, "the prompt has"),
]


@pytest.mark.parametrize(("body", "said"), BAD)
def test_refused(body: dict[str, Any], said: str) -> None:
    async def test(server: Server) -> None:
        answer = await server.post(MESSAGES, **{"model": MODEL, "max_tokens": 12, "messages": HI, **body})
        assert answer.status_code == 400, answer.text
        content = answer.json()
        assert (content["type"], content["error"]["type"]) == ("error", "invalid_request_error")
        assert said in content["error"]["message"]
        assert server.sent == []

    served(test)


def test_what_asks_for_nothing_is_accepted() -> None:
    """Claude Code and others send it with every request."""

    async def test(server: Server) -> None:
        usual = {
            "metadata": {"user_id": "u"},
            "thinking": {"type": "adaptive", "display": "omitted"},
            "context_management": {"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]},
            "output_config": {"effort": "high"},
            "service_tier": "auto",
            "cache_control": {"type": "ephemeral"},
        }
        answer = await server.http.post(
            f"{MESSAGES}?beta=true",
            json={"model": MODEL, "max_tokens": 1, "messages": HI, "owl": 1, **usual},
            headers={"anthropic-version": "2023-06-01", "anthropic-beta": "interleaved-thinking-2025-05-14"},
        )
        assert answer.status_code == 200, answer.text
        assert answer.headers["x-sluice-ignored-fields"] == "owl"

    served(test)


def test_errors_have_anthropics_statuses_and_shape() -> None:
    async def test(server: Server) -> None:
        async def error(status: int, path: str = MESSAGES, method: str = "POST", **body: Any) -> tuple[str, str]:
            sent = {"model": MODEL, "max_tokens": 3, "messages": HI, **body}
            answer = await server.http.request(method, path, json=sent)
            assert answer.status_code == status, answer.text
            content = answer.json()
            assert {*content} == {"type", "error"}
            return content["error"]["type"], content["error"]["message"]

        headers = server.http.headers
        assert (await error(401))[0] == "authentication_error"
        headers["x-api-key"] = "sesame"
        assert (await error(404, model="other"))[0] == "not_found_error"
        assert (await error(405, method="GET"))[0] == "invalid_request_error"
        assert (await error(408, timeout=1e-6))[0] == "timeout_error"
        assert (await error(413, system="a" * 10_000))[0] == "request_too_large"
        server.backend.close("it ended")
        assert (await error(503))[0] == "api_error"

    served(test, api_keys=["sesame"])


def test_a_full_queue_is_an_overload() -> None:
    """Anthropic's clients know 529, and wait before they try again."""

    async def test(server: Server) -> None:
        server.hold()
        body: dict[str, Any] = {"model": MODEL, "max_tokens": 3, "messages": HI}
        calls = [asyncio.create_task(server.post(MESSAGES, **body)) for _ in range(6)]
        await server.arrived(6)
        server.let_go()
        refused = [answer for answer in await asyncio.gather(*calls) if answer.status_code != 200]
        assert refused
        for answer in refused:
            assert (answer.status_code, answer.json()["error"]["type"]) == (529, "overloaded_error")
            assert int(answer.headers["retry-after"]) >= 1

    served(test, max_queued_requests=1, max_running_requests=1)


@pytest.mark.parametrize("stream", [True, False])
def test_a_client_that_leaves_ends_its_request(stream: bool) -> None:
    async def test(server: Server) -> None:
        server.hold()
        body = {"model": MODEL, "max_tokens": 100, "messages": HI, "stream": stream}
        caller = Caller(server, MESSAGES, body)
        await server.arrived(1)
        caller.leave()
        await caller.call
        server.let_go()
        assert len(server.aborts()) == 1

    served(test)


def test_a_failure_within_a_stream_is_an_event() -> None:
    """A client that sees the stream end takes half an answer for the whole."""

    async def test(server: Server) -> None:
        answer = await server.post(MESSAGES, model=MODEL, max_tokens=50, messages=HI, stream=True)
        *_, last, rest = answer.text.split("\n\n")
        assert rest == ""
        assert last.startswith('event: error\ndata: {"type":"error","error":{"type":"api_error","message":')

    served(test, faults=Faults(wait_raises=frozenset({5})))

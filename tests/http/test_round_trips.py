"""Answers come back with the next turn, in the form that each client gives them: every one is accepted."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from agent_apis import events_of, message_of, response_of
from scripted import Scripted, scripted
from serving import run
from sluice.types import FinishReason

USER = {"role": "user", "content": "Look."}
PARAMETERS = {"type": "object", "properties": {"a": {"type": "string"}}}
TOOL = {"name": "f", "description": "looks", "parameters": PARAMETERS}
CALL = '<tool_call>{"name": "f", "arguments": {"a": "1"}}</tool_call>'
ANSWERS: dict[str, tuple[str, FinishReason]] = {
    "text": ("Yes.", FinishReason.STOP),
    "nothing": ("", FinishReason.STOP),
    "thought and text": ("<think>Hm.</think>Yes.", FinishReason.STOP),
    "thought alone": ("<think>Hm, hm", FinishReason.LENGTH),
    "call": (CALL, FinishReason.STOP),
    "two calls": (f"{CALL}\n{CALL}", FinishReason.STOP),
    "text and call": (f"Let me look.\n{CALL}", FinishReason.STOP),
    "thought and call": (f"<think>Hm.</think>{CALL}", FinishReason.STOP),
    "half a call": (CALL[:48], FinishReason.LENGTH),
    "no JSON": ('<tool_call>{"name": "f", "arguments": {"a": Ulm}}</tool_call>', FinishReason.STOP),
    "call without arguments": ('<tool_call>{"name": "f", "arguments": {}}</tool_call>', FinishReason.STOP),
}
Message = dict[str, Any]
Shape = Callable[[Message], Message]


def everything(message: Message) -> Message:
    """As `model_dump()` of the openai package: every field that there is, most of them null."""
    empty = dict.fromkeys(("refusal", "annotations", "audio", "function_call", "tool_calls"))
    return empty | {"content": None} | message


def parsed(message: Message) -> Message:
    """As its `parse()` and its streams leave a message: with what was parsed, and the numbers of the deltas."""
    calls = [
        call | {"index": index, "function": call["function"] | {"parsed_arguments": {"a": None}}}
        for index, call in enumerate(message.get("tool_calls", ()))
    ]
    return message | {"parsed": None, "refusal": "", "tool_calls": calls}


def litellm(message: Message) -> Message:
    fields = {"provider_specific_fields": {"thought_signature": "x"}}
    calls = [call | fields | {"function": call["function"] | fields} for call in message.get("tool_calls", ())]
    return message | fields | {"tool_calls": calls or None, "thinking_blocks": [{"type": "thinking", "thinking": "a"}]}


def vercel(message: Message) -> Message:
    """Parts, and none of the fields that are empty."""
    content = [{"type": "text", "text": message["content"]}] if message["content"] else []
    reasoning = [{"type": "reasoning", "text": message["reasoning"]}] if "reasoning" in message else []
    return {name: value for name, value in message.items() if "reason" not in name} | {"content": reasoning + content}


def legacy(message: Message) -> Message:
    """OpenAI's former calls."""
    calls = message.pop("tool_calls", None)
    return message | ({"function_call": calls[0]["function"]} if calls else {})


def objects(message: Message) -> Message:
    """Arguments as objects where they are JSON, types left out, and a name."""
    calls = []
    for call in message.get("tool_calls", ()):
        text = call["function"]["arguments"]
        arguments = json.loads(text) if text.endswith("}") and "Ulm" not in text else None
        calls.append({"id": call["id"], "type": "", "function": {"name": "f", "arguments": arguments}})
    return message | {"tool_calls": calls, "name": None, "reasoning_details": [{"type": "reasoning.text"}]}


CHATS: tuple[Shape, ...] = (dict, everything, parsed, litellm, vercel, legacy, objects)


def chat_turns(message: Message) -> list[Message]:
    results: list[Message] = [
        {"role": "tool", "tool_call_id": call["id"], "content": content}
        for call, content in zip(message.get("tool_calls") or (), ("done", {"ok": None}), strict=False)
    ]
    if message.get("function_call"):
        results = [{"role": "function", "name": "f", "content": "done"}]
    return [USER, message, *results, USER]


async def whole_chat(server: Scripted, streams: bool, **body: Any) -> Message:
    if not streams:
        answer = await server.chat(**body)
        message: Message = answer["choices"][0]["message"]
        return message
    found: Message = {"role": "assistant", "content": None}
    for event in await server.stream(**body):
        delta = event["choices"][0]["delta"]
        for name in {"content", "reasoning", "reasoning_content"} & delta.keys():
            found[name] = (found.get(name) or "") + delta[name]
        for call in delta.get("tool_calls", ()):
            calls = found.setdefault("tool_calls", [])
            if call["index"] == len(calls):
                calls.append({"id": call["id"], "type": "function", "function": {"name": "f", "arguments": ""}})
            calls[-1]["function"]["arguments"] += call["function"]["arguments"]
    return found


@pytest.mark.parametrize("kind", ANSWERS)
@pytest.mark.parametrize("streams", [False, True])
def test_chats(kind: str, streams: bool) -> None:
    async def test() -> None:
        reply, ends = ANSWERS[kind]
        async with scripted(reply, ends=ends) as server:
            body: Message = {"tools": [{"type": "function", "function": TOOL}]}
            for shape in CHATS:
                message = await whole_chat(server, streams, messages=[USER], **body)
                answer = await server.post("/v1/chat/completions", messages=chat_turns(shape(message)), **body)
                assert answer.status_code == 200, (shape, answer.text)
                shown = server.prompts()[-1]
                assert ("assistant: Yes." in shown) == ("Yes." in reply)
                assert shown.count("<tool_call>") >= ("tool_calls" in message)

    run(test)


@pytest.mark.parametrize("kind", ANSWERS)
@pytest.mark.parametrize("streams", [False, True])
def test_messages(kind: str, streams: bool) -> None:
    def cached(content: list[Message]) -> list[Message]:
        extra = {"cache_control": {"type": "ephemeral"}, "citations": None, "caller": {"type": "direct"}}
        return [block | extra for block in content]

    def hosted(content: list[Message]) -> list[Message]:
        used = {"type": "server_tool_use", "id": "s", "name": "web_search", "input": {}}
        found = {"type": "web_search_tool_result", "tool_use_id": "s", "content": []}
        return [used, found, *(block | {"input": None} if "input" in block else block for block in content)]

    async def test() -> None:
        reply, ends = ANSWERS[kind]
        tools = [{"name": "f", "input_schema": PARAMETERS}]
        body: Message = {"model": "scripted", "max_tokens": 999, "tools": tools}
        async with scripted(reply, ends=ends) as server:
            for shape in (list, cached, hosted):
                if streams:
                    said = message_of(await events_of(server, "/v1/messages", messages=[USER], **body))
                else:
                    said = (await server.post("/v1/messages", messages=[USER], **body)).json()
                uses = [block["id"] for block in said["content"] if block["type"] == "tool_use"]
                results: list[Message] = [
                    {"type": "tool_result", "tool_use_id": each, "content": None} for each in uses
                ]
                turns = [USER, {"role": "assistant", "content": shape(said["content"]) or None}]
                turns.append({"role": "user", "content": [*results, {"type": "text", "text": "Go on."}]})
                answer = await server.post("/v1/messages", messages=turns, **body)
                assert answer.status_code == 200, (shape, answer.text)

    run(test)


@pytest.mark.parametrize("kind", ANSWERS)
@pytest.mark.parametrize("streams", [False, True])
def test_responses(kind: str, streams: bool) -> None:
    def dumped(items: list[Message]) -> list[Message]:
        """As `model_dump()`: fields of newer servers, most of them null."""
        return [
            {"namespace": None, "created_by": None, "encrypted_content": None, "phase": None} | item for item in items
        ]

    def bare(items: list[Message]) -> list[Message]:
        """Without ids and states, with references, and with parts that lost their texts."""
        found = [{name: value for name, value in item.items() if name not in ("id", "status")} for item in items]
        return [item | {"arguments": None} if "arguments" in item else item for item in found] + [
            {"type": "item_reference", "id": "msg_1"},
            {"type": "web_search_call", "id": "ws_1", "status": "completed", "action": {"type": "search"}},
            {"role": "assistant", "content": None},
        ]

    async def test() -> None:
        reply, ends = ANSWERS[kind]
        body: Message = {"tools": [TOOL | {"type": "function"}]}
        async with scripted(reply, ends=ends) as server:
            for shape in (list, dumped, bare):
                if streams:
                    said = response_of(await events_of(server, "/v1/responses", input=[USER], **body))
                else:
                    said = (await server.post("/v1/responses", input=[USER], **body)).json()
                called = [item["call_id"] for item in said["output"] if item["type"] == "function_call"]
                results = [{"type": "function_call_output", "call_id": each, "output": None} for each in called]
                answer = await server.post(
                    "/v1/responses", input=[USER, *shape(said["output"]), *results, USER], **body
                )
                assert answer.status_code == 200, (shape, answer.text)

    run(test)


@pytest.mark.parametrize("kind", ANSWERS)
@pytest.mark.parametrize("streams", [False, True])
def test_ollama(kind: str, streams: bool) -> None:
    def dumped(message: Message) -> Message:
        return {"images": None, "thinking": None, "tool_name": None, "tool_calls": None} | message

    def texts(message: Message) -> Message:
        calls = [
            {"function": {"name": "f", "arguments": json.dumps(call["function"]["arguments"])}}
            for call in message.get("tool_calls", ())
        ]
        return message | {"content": None, "tool_calls": calls}

    async def test() -> None:
        reply, ends = ANSWERS[kind]
        body: Message = {"model": "scripted", "tools": [{"type": "function", "function": TOOL}]}
        async with scripted(reply, ends=ends) as server:
            for shape in (dict, dumped, texts):
                answer = await server.post("/api/chat", messages=[USER], stream=streams, **body)
                message: Message = {"role": "assistant", "content": ""}
                for line in answer.text.splitlines():
                    part = json.loads(line)["message"]
                    message["content"] += part["content"]
                    message |= {name: value for name, value in part.items() if name in ("thinking", "tool_calls")}
                results = [{"role": "tool", "tool_name": "f", "content": "done"} for _ in message.get("tool_calls", ())]
                answer = await server.post("/api/chat", messages=[USER, shape(message), *results, USER], **body)
                assert answer.status_code == 200, (shape, answer.text)

    run(test)


ODD: tuple[tuple[str, Message], ...] = (
    *(("/v1/chat/completions", {"role": role, "content": None}) for role in ("user", "system", "assistant", "tool")),
    *(("/v1/chat/completions", {"role": role}) for role in ("user", "developer", "assistant", "tool")),
    ("/v1/chat/completions", {"role": "assistant", "content": None, "audio": {"id": "audio_1"}}),
    (
        "/v1/chat/completions",
        {"role": "assistant", "content": [{"type": "refusal", "refusal": "No."}], "refusal": "No."},
    ),
    (
        "/v1/chat/completions",
        {"role": "assistant", "content": [{"type": "thinking", "thinking": "a", "signature": "b"}]},
    ),
    ("/v1/chat/completions", {"role": "user", "content": [{"type": "input_text", "text": None}, "plain"]}),
    ("/v1/chat/completions", {"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": []}}]}),
    (
        "/v1/chat/completions",
        {"role": "assistant", "tool_calls": [{"id": "c", "type": "custom", "custom": {"name": "f", "input": "x"}}]},
    ),
    ("/v1/chat/completions", {"role": "user", "content": "a", "tool_call_id": "1", "tool_calls": []}),
    ("/v1/messages", {"role": "assistant"}),
    ("/v1/messages", {"role": "user", "content": ["plain", {"type": "text", "text": None}]}),
    ("/v1/responses", {"type": "custom_tool_call", "call_id": "c", "name": "f", "input": "x"}),
    ("/v1/responses", {"type": "local_shell_call", "call_id": "c", "action": {"type": "exec", "command": ["ls"]}}),
    ("/v1/responses", {"type": "message", "role": "user", "content": None}),
    ("/api/chat", {"role": "tool", "content": {"ok": True}}),
)


@pytest.mark.parametrize(("path", "message"), ODD)
def test_odd_messages(path: str, message: Message) -> None:
    async def test() -> None:
        async with scripted("yes") as server:
            body: Message = {} if path == "/v1/responses" else {"model": "scripted"}
            body |= {"max_tokens": 9} if path == "/v1/messages" else {}
            field = "input" if path == "/v1/responses" else "messages"
            answer = await server.post(path, **body, **{field: [USER, message, USER]})
            assert answer.status_code == 200, answer.text

    run(test)


def test_what_is_ignored_in_messages_is_named() -> None:
    async def test() -> None:
        async with scripted("yes") as server:
            call = {"id": "1", "owl": 1, "function": {"name": "f", "arguments": "{}", "bat": 2}}
            part = {"type": "text", "text": "a", "cat": 3}
            turns = [{"role": "user", "content": [part]}, {"role": "assistant", "tool_calls": [call]}, USER]
            answer = await server.post("/v1/chat/completions", messages=turns)
            named = answer.headers["x-sluice-ignored-fields"]
            assert (
                named == "messages[].content[].cat, messages[].tool_calls[].owl, messages[].tool_calls[].function.bat"
            )

    run(test)


@pytest.mark.parametrize(
    "message",
    [
        {"role": "owl", "content": "a"},
        {"role": "user", "content": [{"type": "image_url", "image_url": {"url": "a"}}]},
        {"role": "user", "content": 5},
        {"role": "assistant", "tool_calls": [{"function": {"arguments": "{}"}}]},
        {"role": "user", "contnet": "a"},
    ],
)
def test_what_is_checked_in_a_message(message: Message) -> None:
    async def test() -> None:
        async with scripted("yes") as server:
            answer = await server.post("/v1/chat/completions", messages=[message])
            assert answer.status_code == 400
            assert answer.json()["error"]["param"].startswith("messages[0].")

    run(test)

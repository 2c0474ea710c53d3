"""Calls that are not whole: how the answer ends, by each API, and what is shown of a call that was cut off."""

from __future__ import annotations

import json
from typing import Any

import pytest

from agent_apis import events_of, message_of, response_of
from scripted import Scripted, scripted
from serving import run
from sluice.text.parsers.events import whole_of
from sluice.text.parsers.formats import FORMATS
from sluice.text.parsers.formats.deepseek import ALL_BEGIN, BEGIN, SEPARATOR
from sluice.text.parsers.replies import ReplyFormat
from sluice.text.parsers.tools import Tool, ToolUse
from sluice.types import FinishReason

SAID = [{"role": "user", "content": "Call f."}]
PARAMETERS = {"type": "object", "properties": {"a": {"type": "string"}}}
TOOL = {"name": "f", "parameters": PARAMETERS}
CHAT: dict[str, Any] = {"messages": SAID, "tools": [{"type": "function", "function": TOOL}]}
WHOLE = '<tool_call>\n{"name": "f", "arguments": {"a": "one } two"}}\n</tool_call>'
HALF = '<tool_call>\n{"name": "f", "arguments": {"a": "one '
ODD = '<tool_call>\n{"name": "f", "arguments": {"a": Ulm}}\n</tool_call>'
USE = ToolUse((Tool("f", parameters=PARAMETERS),))


async def reasons(server: Scripted, **chat: Any) -> set[str]:
    """Why a chat ended, whole and streamed."""
    answer = await server.chat(**CHAT, **chat)
    last = (await server.stream(**CHAT, **chat))[-1]
    return {answer["choices"][0]["finish_reason"], last["choices"][0]["finish_reason"]}


@pytest.mark.parametrize(
    ("reply", "stop", "ends", "expected"),
    [
        (WHOLE, [], FinishReason.STOP, "tool_calls"),
        (WHOLE, ["</tool_call>"], FinishReason.STOP, "tool_calls"),
        (WHOLE, ["}"], FinishReason.STOP, "stop"),
        (WHOLE, ["two"], FinishReason.STOP, "stop"),
        (HALF, [], FinishReason.STOP, "stop"),
        (HALF, [], FinishReason.LENGTH, "length"),
        (ODD, [], FinishReason.STOP, "stop"),
        (f"{WHOLE}\n{HALF}", [], FinishReason.STOP, "stop"),
        (f"{WHOLE}\n{HALF}", [], FinishReason.LENGTH, "length"),
    ],
)
def test_only_whole_calls_are_a_reason(reply: str, stop: list[str], ends: FinishReason, expected: str) -> None:
    """Agents parse the arguments if they read `tool_calls`, and fail on half of them."""

    async def test() -> None:
        async with scripted(reply, ends=ends) as server:
            assert await reasons(server, stop=stop) == {expected}
            is_called = expected == "tool_calls"
            for streams in (False, True):
                tools = [TOOL | {"type": "function"}]
                response = await _response(server, streams, input=SAID, tools=tools, stop=stop)
                assert (response["status"] == "completed") == is_called
                message = await _message(server, streams, tools=[{"name": "f", "input_schema": PARAMETERS}], stop=stop)
                assert (message["stop_reason"] == "tool_use") == (is_called and not stop)
                chat = {"model": "scripted", "options": {"stop": stop}, "stream": streams}
                answer = await server.post("/api/chat", **CHAT, **chat)
                parts = [json.loads(line)["message"] for line in answer.text.splitlines()]
                calls = [call for part in parts for call in part.get("tool_calls", [])]
                assert all(call["function"]["arguments"] == {"a": "one } two"} for call in calls)

    run(test)


async def _response(server: Scripted, streams: bool, **body: Any) -> Any:
    if streams:
        return response_of(await events_of(server, "/v1/responses", **body))
    return (await server.post("/v1/responses", **body)).json()


async def _message(server: Scripted, streams: bool, *, stop: list[str], **body: Any) -> Any:
    body |= {"model": "scripted", "max_tokens": 999, "messages": SAID, "stop_sequences": stop}
    if streams:
        return message_of(await events_of(server, "/v1/messages", **body))
    return (await server.post("/v1/messages", **body)).json()


HEADS = {
    "hermes": WHOLE[: WHOLE.index('{"a"')],
    "qwen3_coder": "<tool_call>\n<function=f>",
    "seed_oss": "<seed:tool_call>\n<function=f>",
    "glm45": "<tool_call>f\n<arg_key>",
    "glm47": "<tool_call>f<arg_key>",
    "kimi_k2": "<|tool_calls_section_begin|><|tool_call_begin|>functions.f:0<|tool_call_argument_begin|>{",
    "deepseek_v32": '<\uff5cDSML\uff5cfunction_calls>\n<\uff5cDSML\uff5cinvoke name="f">',
    "deepseek_v4": '<\uff5cDSML\uff5ctool_calls>\n<\uff5cDSML\uff5cinvoke name="f">',
    "minimax_m2": '<minimax:tool_call>\n<invoke name="f">',
    "mistral": '[TOOL_CALLS][{"name": "f", "arguments": {',
    "deepseek_v3": f"{ALL_BEGIN}{BEGIN}function{SEPARATOR}f\n```json\n{{",
    "deepseek_v31": f"{ALL_BEGIN}{BEGIN}f{SEPARATOR}{{",
    "llama3_json": '{"name": "f", "parameters": {',
    "json": '{"name": "f", "arguments": {',
    "gemma4": "<|tool_call>call:f{",
    "lfm2": "<|tool_call_start|>[f(",
    "olmo3": "<function_calls>f(",
    "llama4_pythonic": "<|python_start|>[f(",
    "phi4_mini": 'functools[{"name": "f", "arguments": {',
    "granite": '<|tool_call|>[{"name": "f", "arguments": {',
    "nemotron_v2": '<TOOLCALL>[{"name": "f", "arguments": {',
    "apriel": '<tool_calls>[{"name": "f", "arguments": {',
    "openai": "<|channel|>commentary to=functions.f <|constrain|>json<|message|>{",
}


@pytest.mark.parametrize("name", FORMATS)
def test_the_head_of_a_call_that_was_cut_off_is_no_text(name: str) -> None:
    """Clients showed `<tool_call>` and half an object as the answer."""
    head = HEADS[name]
    format = ReplyFormat(FORMATS[name])
    for before in ("", "I look.\n" if name not in ("llama3_json", "json", "openai") else ""):
        for at in range(5, len(head)):
            for cuts in (range(0), range(at + len(before))):
                text = before + head[:at]
                parser = format.parser(USE, new_id=lambda: "1")
                events = [event for start in cuts for event in parser.push(text[start])] if cuts else parser.push(text)
                reply = whole_of([*events, *parser.finish(is_cut=True)])
                assert reply.text == before.strip(), text
                assert all(not call.is_complete and call.name == "f" for call in reply.calls)


@pytest.mark.parametrize("text", ["I wrote <tool_call> here", "a <b", "<tool_call> is a tag, and more", '{"a": 1', "{"])
def test_other_text_that_was_cut_off_stays(text: str) -> None:
    for name in ("hermes", "json", "llama3_json"):
        parser = ReplyFormat(FORMATS[name]).parser(USE)
        assert whole_of([*parser.push(text), *parser.finish(is_cut=True)]).text == text

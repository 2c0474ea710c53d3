"""Tools, reasoning and formats in the APIs that agents speak: one answer of a model, spelled by each of them."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jinja2.sandbox import ImmutableSandboxedEnvironment

from agent_apis import events_of, message_of, response_of
from scripted import Scripted, scripted
from serving import run
from sluice.http.apis.anthropic.fields import parse_messages
from sluice.http.call.generate_call import Conversation
from sluice.types import FinishReason

MESSAGES, RESPONSES = "/v1/messages", "/v1/responses"
SCHEMA = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
WEATHER = {"name": "weather", "description": "The weather of a city."}
ANTHROPIC_TOOLS = [WEATHER | {"input_schema": SCHEMA}, {"type": "custom", "name": "now", "input_schema": {}}]
OPENAI_TOOLS = [
    {"type": "function", **WEATHER, "parameters": SCHEMA},
    {"type": "function", "name": "now", "strict": False, "parameters": None},
]
SAID = [{"role": "user", "content": "Is it warm in Ulm?"}]
ULM = '{"city": "Ulm"}'
CALL = f'<tool_call>\n{{"name": "weather", "arguments": {ULM}}}\n</tool_call>'
NOW = '<tool_call>{"name": "now", "arguments": {}}</tool_call>'
TWO = f"<think>\nI must look.\n</think>\n\nLet me see.\n{CALL}\n{NOW}"
MESSAGE: dict[str, Any] = {"model": "scripted", "max_tokens": 500, "messages": SAID, "tools": ANTHROPIC_TOOLS}
RESPONSE: dict[str, Any] = {"input": SAID, "tools": OPENAI_TOOLS}


def answering(reply: str, test: Callable[[Scripted], Awaitable[None]], **options: Any) -> None:
    async def body() -> None:
        async with scripted(reply, **options) as server:
            await test(server)

    run(body)


async def whole(server: Scripted, path: str, **body: Any) -> dict[str, Any]:
    answer = await server.post(path, **body)
    assert answer.status_code == 200, answer.text
    content: dict[str, Any] = answer.json()
    return content


def test_a_message_with_thoughts_and_calls() -> None:
    """An agent reads what to call, and with what, from these blocks."""

    async def test(server: Scripted) -> None:
        message = await whole(server, MESSAGES, **MESSAGE)
        thinking, text, *calls = message["content"]
        assert (thinking["type"], thinking["thinking"].strip()) == ("thinking", "I must look.")
        assert text == {"type": "text", "text": "Let me see."}
        assert [(call["type"], call["name"], call["input"]) for call in calls] == [
            ("tool_use", "weather", {"city": "Ulm"}),
            ("tool_use", "now", {}),
        ]
        assert len({call["id"] for call in calls}) == 2
        assert message["stop_reason"] == "tool_use"
        shown = json.loads(server.prompts()[0].splitlines()[0].removeprefix("tools: "))
        assert shown[0] == {"type": "function", "function": WEATHER | {"parameters": SCHEMA}}

    answering(TWO, test)


def test_a_response_with_reasoning_and_calls() -> None:
    async def test(server: Scripted) -> None:
        response = await whole(server, RESPONSES, **RESPONSE)
        reasoning, message, *calls = response["output"]
        assert (reasoning["type"], reasoning["summary"]) == ("reasoning", [])
        assert reasoning["content"][0]["text"].strip() == "I must look."
        assert message["content"][0]["text"] == "Let me see."
        assert [(call["type"], call["name"], call["arguments"]) for call in calls] == [
            ("function_call", "weather", ULM),
            ("function_call", "now", "{}"),
        ]
        assert {item["status"] for item in response["output"]} == {"completed"}
        assert len({item["id"] for item in response["output"]}) == 4
        assert 0 < response["usage"]["output_tokens_details"]["reasoning_tokens"] < response["usage"]["output_tokens"]
        assert response["tools"][0] == {"type": "function", **WEATHER, "parameters": SCHEMA, "strict": False}
        shown = json.loads(server.prompts()[0].splitlines()[0].removeprefix("tools: "))
        assert shown[0] == {"type": "function", "function": WEATHER | {"parameters": SCHEMA}}

    answering(TWO, test)


def test_calls_come_back_with_their_results() -> None:
    """The second turn of an agent's loop, in both APIs: the same conversation."""

    async def test(server: Scripted) -> None:
        result = "warm"
        message = await whole(server, MESSAGES, **MESSAGE)
        ids = [block["id"] for block in message["content"] if block["type"] == "tool_use"]
        results = [{"type": "tool_result", "tool_use_id": each, "content": result} for each in ids]
        turns = [*SAID, {"role": "assistant", "content": message["content"]}, {"role": "user", "content": results}]
        await whole(server, MESSAGES, **MESSAGE | {"messages": turns})
        response = await whole(server, RESPONSES, **RESPONSE)
        calls = [item for item in response["output"] if item["type"] == "function_call"]
        outputs = [{"type": "function_call_output", "call_id": call["call_id"], "output": result} for call in calls]
        await whole(server, RESPONSES, **RESPONSE | {"input": [*SAID, *response["output"], *outputs]})
        first, second = server.prompts()[1], server.prompts()[3]
        assert first.split("\n", 1)[1] == second.split("\n", 1)[1]
        assert f'assistant: Let me see.<tool_call>{{"name": "weather", "arguments": {ULM}}}</tool_call>' in first
        assert first.count(f"tool: {result}") == 2

    answering(TWO, test)


@pytest.mark.parametrize(
    ("choice", "parallel", "openai_choice"),
    [
        ({"type": "none"}, True, "none"),
        ({"type": "auto", "disable_parallel_tool_use": True}, False, "auto"),
    ],
)
def test_choices(choice: dict[str, Any], parallel: bool, openai_choice: Any) -> None:
    """`none` shows the model no tools, and takes what it writes as text."""

    async def test(server: Scripted) -> None:
        message = await whole(server, MESSAGES, **MESSAGE, tool_choice=choice)
        response = await whole(server, RESPONSES, **RESPONSE, tool_choice=openai_choice, parallel_tool_calls=parallel)
        assert (response["tool_choice"], response["parallel_tool_calls"]) == (openai_choice, parallel)
        has_calls = any(block["type"] == "tool_use" for block in message["content"])
        assert has_calls == any(item["type"] == "function_call" for item in response["output"])
        assert has_calls == (openai_choice != "none") == server.prompts()[0].startswith("tools: ")
        assert message["stop_reason"] == ("tool_use" if has_calls else "end_turn")

    answering(CALL, test)


def test_a_bad_schema_is_named() -> None:
    """A client with a hundred tools must learn which of their schemas is at fault."""
    bad = {"type": "object", "properties": {"a": {"$ref": "#/$defs/b"}}}

    async def test(server: Scripted) -> None:
        tools = [ANTHROPIC_TOOLS[1], {"name": "bad", "input_schema": bad}]
        answer = await server.post(MESSAGES, **MESSAGE | {"tools": tools, "tool_choice": {"type": "any"}})
        assert answer.status_code == 400
        assert "tools[1].input_schema.properties.a" in answer.json()["error"]["message"]
        tools = [OPENAI_TOOLS[1], {"type": "function", "name": "bad", "parameters": bad}]
        answer = await server.post(RESPONSES, **RESPONSE | {"tools": tools, "tool_choice": "required"})
        assert answer.status_code == 400
        assert answer.json()["error"]["param"].startswith("tools[1].parameters.properties.a")

    answering(CALL, test)


@pytest.mark.parametrize("kind", ["enabled", "disabled"])
def test_thinking_sets_the_switch_of_every_template(kind: str) -> None:
    """Templates of Qwen read `enable_thinking`, those of DeepSeek V3.1 `thinking`: without it they would not think."""
    call = parse_messages(json.dumps(MESSAGE | {"max_tokens": 5000, "thinking": {"type": kind}}).encode())
    (prompt,) = call.prompts
    assert isinstance(prompt, Conversation)
    source = "{% if thinking %}thinks{% endif %}|{% if enable_thinking %}thinks{% endif %}"
    expected = "thinks|thinks" if kind == "enabled" else "|"
    shown = ImmutableSandboxedEnvironment().from_string(source).render(**prompt.options.variables)
    assert shown == expected


def test_a_call_that_is_cut_off_is_told() -> None:
    """A client must not run a call whose arguments are not all there."""

    async def test(server: Scripted) -> None:
        message = await whole(server, MESSAGES, **MESSAGE)
        assert (message["stop_reason"], message["content"][0]["input"]) == ("max_tokens", {})
        response = await whole(server, RESPONSES, **RESPONSE)
        (call,) = response["output"]
        assert (response["status"], call["status"], call["arguments"]) == ("incomplete", "incomplete", '{"city": "U')

    answering('<tool_call>\n{"name": "weather", "arguments": {"city": "U', test, ends=FinishReason.LENGTH)


@pytest.mark.parametrize("arguments", ['{"city": Ulm}', '{"city": "\\ud800"}'])
def test_a_call_that_is_no_json_is_told(arguments: str) -> None:
    """The whole answer would be a 500, or an agent would run what it cannot parse."""

    async def test(server: Scripted) -> None:
        message = await whole(server, MESSAGES, **MESSAGE)
        assert (message["stop_reason"], message["content"][0]["input"]) == ("end_turn", {})
        (call,) = (await whole(server, RESPONSES, **RESPONSE))["output"]
        assert (call["status"], call["arguments"]) == ("incomplete", arguments)

    answering(f'<tool_call>\n{{"name": "weather", "arguments": {arguments}}}\n</tool_call>', test)


def test_a_call_that_went_wrong_may_be_sent_back() -> None:
    """The turn in which an agent asks for a better call would be refused, though the server made the first one."""
    wrong = '{"city": Ulm}'

    async def test(server: Scripted) -> None:
        chat = await server.chat(messages=SAID, tools=[{"type": "function", "function": WEATHER}])
        message = chat["choices"][0]["message"]
        result = {"role": "tool", "tool_call_id": message["tool_calls"][0]["id"], "content": "no JSON"}
        await server.chat(messages=[*SAID, message, result])
        first = await whole(server, RESPONSES, **RESPONSE)
        output = {"type": "function_call_output", "call_id": first["output"][0]["call_id"], "output": "no JSON"}
        await whole(server, RESPONSES, **RESPONSE | {"input": [*SAID, *first["output"], output]})
        for prompt in server.prompts()[1::2]:
            assert json.dumps({"arguments": wrong}) in prompt

    answering(f'<tool_call>\n{{"name": "weather", "arguments": {wrong}}}\n</tool_call>', test)


@pytest.mark.parametrize(
    ("begun", "is_reasoning"), [("Sure, " * 20 + "it", False), ("<think>" + "Hm, " * 40 + "it", True)]
)
def test_a_continued_answer_is_what_it_continues(begun: str, is_reasoning: bool) -> None:
    """An answer that the client began would come as thoughts where the model begins with them without a tag."""

    async def test(server: Scripted) -> None:
        message = await server.chat(
            messages=[*SAID, {"role": "assistant", "content": begun}], continue_final_message=True
        )
        found = message["choices"][0]["message"]
        assert bool(found.get("reasoning_content")) == is_reasoning
        assert bool(found["content"]) != is_reasoning
        if not is_reasoning:
            turns = [*SAID, {"role": "assistant", "content": begun}]
            content = (await whole(server, MESSAGES, **MESSAGE | {"messages": turns}))["content"]
            assert [block["type"] for block in content] == ["text"]

    answering(" is warm.", test, reasoning_parser="deepseek_r1")


NEW = ("id", "call_id", "created_at", "completed_at")
"""What is another in every answer."""
PARTS = st.sampled_from(
    [
        "Let me see. ",
        "\n",
        "a < b",
        CALL,
        NOW,
        '<tool_call>{"name": "owl", "arguments": {}}</tool_call>',
        "<tool_call>no JSON</tool_call>",
        '<tool_call>{"name": "weather", "arguments": {"city": "U',
        "<think>",
        "</think>",
    ]
)


@settings(max_examples=60)
@given(
    st.sampled_from(["", "<think>\nhm\n</think>\n\n", "<think>hm"]),
    st.lists(PARTS, min_size=1, max_size=6),
    st.sampled_from([FinishReason.STOP, FinishReason.LENGTH]),
)
def test_a_stream_adds_up_to_the_whole_answer(thoughts: str, parts: list[str], ends: FinishReason) -> None:
    """Whatever the model writes: a client that streams must see what one that does not would."""

    async def test(server: Scripted) -> None:
        message = await whole(server, MESSAGES, **MESSAGE)
        streamed = message_of(await events_of(server, MESSAGES, **MESSAGE))
        response = await whole(server, RESPONSES, **RESPONSE)
        summed = response_of(await events_of(server, RESPONSES, **RESPONSE))
        assert [*without_ids([message])] == [*without_ids([streamed])]
        assert [*without_ids([response])] == [*without_ids([summed])]
        texts = ["".join(block.get("text", "") for block in message["content"])]
        texts.append("".join(part["text"] for item in response["output"] for part in item.get("content", ())))
        shown = "".join(block.get("thinking", "") for block in message["content"])
        assert texts[1] == shown + texts[0], "both APIs say the same"

    async def body() -> None:
        async with scripted(thoughts + "".join(parts), ends=ends, reasoning_parser="qwen3") as server:
            await test(server)

    run(body)


@settings(max_examples=60)
@given(
    st.sampled_from(["", "<think>\nhm\n</think>\n\n", "hm</think>\n\nhm"]),
    st.lists(PARTS, min_size=1, max_size=6),
    st.sampled_from([FinishReason.STOP, FinishReason.LENGTH]),
)
def test_log_probabilities_spell_the_text(thoughts: str, parts: list[str], ends: FinishReason) -> None:
    """A client that scores an answer by its tokens must have all of them, and none of a marker or a call."""

    async def body() -> None:
        async with scripted(thoughts + "".join(parts), ends=ends, reasoning_parser="qwen3") as server:
            response = await whole(server, RESPONSES, **RESPONSE, top_logprobs=1)
            for item in response["output"]:
                for part in item["content"] if item["type"] == "message" else ():
                    assert "".join(token["token"] for token in part["logprobs"]) == part["text"]
            summed = response_of(await events_of(server, RESPONSES, **RESPONSE, top_logprobs=1))
            assert [*without_ids([response])] == [*without_ids([summed])]

    run(body)


def without_ids(values: Any) -> Iterator[Any]:
    """The values without what is new in every answer."""
    for value in values:
        if isinstance(value, dict):
            kept = {name: each for name, each in value.items() if name not in NEW}
            yield {name: [*without_ids(each)] if isinstance(each, list) else each for name, each in kept.items()}
        else:
            yield value


@pytest.mark.parametrize(
    ("path", "body", "said"),
    [
        (MESSAGES, {"tools": [{"type": "owl", "name": "owl"}]}, "'owl' is not"),
        (MESSAGES, {"tools": [{"name": "f"}]}, "tools[0].input_schema is required"),
        (MESSAGES, {"tools": [{"name": "a b", "input_schema": {}}]}, "tools[0].name must be 1 to 128 letters"),
        (MESSAGES, {"tools": [{"name": "f", "input_schema": {"type": "array"}}]}, "tools[0].input_schema.type must"),
        (MESSAGES, {"tool_choice": {"type": "tool", "name": "owl"}}, "tool_choice names the tool 'owl'"),
        (MESSAGES, {"tool_choice": {"type": "any"}, "tools": []}, "tool_choice needs tools"),
        (MESSAGES, {"tool_choice": {"type": "required"}}, "tool_choice.type 'required' is not supported; accepted: au"),
        (MESSAGES, {"output_config": {"format": {"type": "xml"}}}, "output_config.format.type must be one of"),
        (RESPONSES, {"tools": [{"type": "owl"}]}, "tools[0].type 'owl' is not supported; accepted: function, custom"),
        (RESPONSES, {"tools": [{"type": "function"}]}, "tools[0].name is required"),
        (RESPONSES, {"tool_choice": {"type": "function", "name": "owl"}}, "tool_choice names the tool 'owl'"),
        (RESPONSES, {"tool_choice": {"type": "owl"}}, "tool_choice.type 'owl' is not supported"),
        (RESPONSES, {"tool_choice": "owl"}, "tool_choice must be none, auto, required or an object"),
        (RESPONSES, {"text": {"format": {"type": "json_schema", "name": "x"}}}, "text.format.schema is required"),
        (RESPONSES, {"text": {"format": {"type": "json_schema", "schema": {"type": "owl"}}}}, "text.format.schema"),
    ],
)
def test_refused(path: str, body: dict[str, Any], said: str) -> None:
    async def test(server: Scripted) -> None:
        answer = await server.post(path, **(MESSAGE if path == MESSAGES else RESPONSE) | body)
        assert answer.status_code == 400, answer.text
        assert said in answer.json()["error"]["message"]
        assert server.submitted == []

    answering("hi", test)


@pytest.mark.parametrize(
    ("path", "body"),
    [
        (MESSAGES, {"output_config": {"format": {"type": "json_schema", "schema": SCHEMA}}}),
        (RESPONSES, {"text": {"format": {"type": "json_schema", "name": "c", "schema": SCHEMA, "strict": True}}}),
        (RESPONSES, {"text": {"format": {"type": "json_object"}}}),
    ],
)
def test_formats_become_grammars(path: str, body: dict[str, Any]) -> None:
    """A format that does not reach the engine is a promise that the answer breaks."""

    async def test(server: Scripted) -> None:
        plain = MESSAGE if path == MESSAGES else RESPONSE
        await whole(server, path, **{name: value for name, value in plain.items() if name != "tools"} | body)
        assert server.submitted[0].grammar

    answering(ULM, test)

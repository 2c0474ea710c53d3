"""Tools and reasoning in chats, as clients of OpenAI see them."""

from __future__ import annotations

import json
import re
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import httpx
import pytest

from scripted import Scripted, scripted
from serve_process import announced, shadow
from serve_process import server as server_process
from serving import run
from sluice.config import ConfigError, ServerConfig
from sluice.http.base.parsers import check_parsers
from sluice.types import FinishReason

SAID = [{"role": "user", "content": "Is it warm in Ulm?"}]
FUNCTION = {
    "name": "weather",
    "description": "The weather of a city.",
    "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
}
TOOLS = [{"type": "function", "function": FUNCTION}, {"type": "function", "function": {"name": "now"}}]
CITIES = ("rome", "ulm")
ULM = '{"city": "Ulm"}'
CALL = f'<tool_call>\n{{"name": "weather", "arguments": {ULM}}}\n</tool_call>'
TWO = f'Let me see.\n{CALL}\n<tool_call>\n{{"name": "now", "arguments": {{}}}}\n</tool_call>'


def answering(reply: str, test: Callable[[Scripted], Awaitable[None]], **options: Any) -> None:
    async def body() -> None:
        async with scripted(reply, **options) as server:
            await test(server)

    run(body)


def calls_of(message: dict[str, Any]) -> list[tuple[str, str]]:
    return [(call["function"]["name"], call["function"]["arguments"]) for call in message["tool_calls"]]


def test_calls_come_whole() -> None:
    """A client that offers tools must get calls, and no text with tags."""

    async def test(server: Scripted) -> None:
        choice = (await server.chat(messages=SAID, tools=TOOLS))["choices"][0]
        message = choice["message"]
        assert choice["finish_reason"] == "tool_calls"
        assert message["content"] == "Let me see."
        assert calls_of(message) == [("weather", ULM), ("now", "{}")]
        ids = [call["id"] for call in message["tool_calls"]]
        assert len({*ids}) == 2
        assert all(id.startswith("call_") for id in ids)
        (prompt,) = server.prompts()
        assert json.loads(prompt.splitlines()[0].removeprefix("tools: ")) == TOOLS

    answering(TWO, test)


def test_a_streamed_answer_is_the_whole_one() -> None:
    """The deltas of a stream would add up to something else than the answer in one piece."""

    async def test(server: Scripted) -> None:
        whole = (await server.chat(messages=SAID, tools=TOOLS))["choices"][0]
        events = [event["choices"][0] for event in await server.stream(messages=SAID, tools=TOOLS)]
        text, calls = "", {}
        for event in events:
            delta = event["delta"]
            text += delta.get("content", "")
            for part in delta.get("tool_calls", ()):
                if "id" in part:
                    assert (part["type"], part["index"]) == ("function", len(calls))
                    calls[part["index"]] = (part["function"]["name"], "")
                name, arguments = calls[part["index"]]
                calls[part["index"]] = (name, arguments + part["function"]["arguments"])
        assert text == whole["message"]["content"]
        assert [*calls.values()] == calls_of(whole["message"])
        assert [event["finish_reason"] for event in events if event["finish_reason"]] == ["tool_calls"]
        parts = [event for event in events if event["delta"].get("tool_calls")]
        assert len(parts) > 5, "the arguments did not stream"

    answering(TWO, test)


def test_a_call_that_is_cut_off_is_told() -> None:
    """`length` must not look like a call that can be made."""

    async def test(server: Scripted) -> None:
        choice = (await server.chat(messages=SAID, tools=TOOLS))["choices"][0]
        assert choice["finish_reason"] == "length"
        assert calls_of(choice["message"]) == [("weather", '{"city": "U')]

    answering('<tool_call>\n{"name": "weather", "arguments": {"city": "U', test, ends=FinishReason.LENGTH)


@pytest.mark.parametrize("choice", ["none", None])
def test_no_calls_where_none_may_be(choice: str | None) -> None:
    """`tool_choice: none`, or no tools at all: what the model writes is text, and it is shown no tools."""

    async def test(server: Scripted) -> None:
        more = {"tools": TOOLS, "tool_choice": "none"} if choice == "none" else {}
        answer = (await server.chat(messages=SAID, skip_special_tokens=False, **more))["choices"][0]
        assert answer["message"] == {"role": "assistant", "content": CALL}
        assert answer["finish_reason"] == "stop"
        assert "tools" not in server.prompts()[0]

    answering(CALL, test)


def test_markers_that_are_special_tokens_are_seen() -> None:
    """Mistral's marker is a special token, which texts leave out: the calls would come back as text."""

    async def test(server: Scripted) -> None:
        message = (await server.chat(messages=SAID, tools=TOOLS))["choices"][0]["message"]
        assert (message["content"], calls_of(message)) == (None, [("weather", ULM)])
        assert len(message["tool_calls"][0]["id"]) == 9
        plain = (await server.chat(messages=SAID))["choices"][0]["message"]
        assert plain == {"role": "assistant", "content": f"weather{ULM}"}

    answering(f"[TOOL_CALLS]weather[ARGS]{ULM}", test, tool_parser="mistral")


def test_results_of_tools_reach_the_template() -> None:
    """The second round of an agent: its calls, and what they gave."""

    async def test(server: Scripted) -> None:
        call = {"id": "call_1", "type": "function", "function": {"name": "weather", "arguments": ULM}}
        result = {"role": "tool", "tool_call_id": "call_1", "content": "18 degrees"}
        talk = [*SAID, {"role": "assistant", "content": None, "tool_calls": [call]}, result]
        await server.chat(messages=talk, tools=TOOLS)
        (prompt,) = server.prompts()
        call_text = CALL.replace("\n", "")
        assert prompt.endswith(f"assistant: {call_text}tool: 18 degreesassistant: ")

    answering("Yes.", test)


def test_results_come_in_the_order_of_their_calls() -> None:
    """A template that writes no ids would show the model Ulm's weather as that of Rome."""
    named = {
        city: {"id": city, "type": "function", "function": {"name": "weather", "arguments": ULM}} for city in CITIES
    }
    asking = {"role": "assistant", "content": None, "tool_calls": [named["rome"], named["ulm"]]}

    def result(call_id: str, text: str) -> dict[str, Any]:
        return {"role": "tool", "tool_call_id": call_id, "content": text}

    first = [
        result("oslo", "lost"),
        result("ulm", "foggy"),
        {"role": "tool", "content": "bare"},
        result("rome", "sunny"),
    ]
    second = [result("ulm", "hot"), result("rome", "cold")]

    async def test(server: Scripted) -> None:
        await server.chat(messages=[*SAID, asking, *first, *SAID, asking, *second], tools=TOOLS)
        (prompt,) = server.prompts()
        assert re.findall(r"tool: (\w+?)(?=tool|user|assistant)", prompt) == [
            "sunny",
            "foggy",
            "lost",
            "bare",
            "cold",
            "hot",
        ]

    answering("Yes.", test)


THOUGHT = "<think>\nHm, hm.\n</think>\n\nYes."


def test_reasoning_is_told_apart() -> None:
    """A chat window would show what the model thinks as its answer."""

    async def test(server: Scripted) -> None:
        answer = await server.chat(messages=SAID)
        message = answer["choices"][0]["message"]
        assert message == {
            "role": "assistant",
            "content": "Yes.",
            "reasoning_content": "Hm, hm.",
            "reasoning": "Hm, hm.",
        }
        # The line breaks behind the end tag belong to no thought.
        assert answer["usage"]["completion_tokens_details"] == {"reasoning_tokens": len("<\nHm, hm.\n>")}
        events = await server.stream(messages=SAID, stream_options={"include_usage": True})
        assert events[-1]["usage"] == answer["usage"]
        deltas = [event["choices"][0]["delta"] for event in events[:-1]]
        assert "".join(delta.get("content", "") for delta in deltas) == "Yes."
        for name in ("reasoning", "reasoning_content"):
            assert "".join(delta.get(name, "") for delta in deltas) == "Hm, hm."

    answering(THOUGHT, test)


def test_the_template_may_begin_the_reasoning() -> None:
    """Newer templates write the first tag: without it, all of the thoughts would be the answer; or with thinking off,
    all of the answer a thought."""

    async def test(server: Scripted) -> None:
        for is_on, expected in ((True, ("Yes.", "Hm.")), (False, ("Hm.</think>\n\nYes.", None))):
            thinking = {"enable_thinking": is_on}
            message = (await server.chat(messages=SAID, chat_template_kwargs=thinking))["choices"][0]["message"]
            assert (message["content"], message.get("reasoning")) == expected

    answering("Hm.</think>\n\nYes.", test)


def test_reasoning_and_calls() -> None:
    """A reasoning model that calls a tool does both in one answer."""

    async def test(server: Scripted) -> None:
        message = (await server.chat(messages=SAID, tools=TOOLS))["choices"][0]["message"]
        assert (message["reasoning"], message["content"], calls_of(message)) == ("Hm.", None, [("weather", ULM)])

    answering(f"<think>Hm.</think>{CALL}", test)


def test_parsers_can_be_turned_off() -> None:
    """`none` must not fall back to what the template shows."""

    async def test(server: Scripted) -> None:
        answer = (await server.chat(messages=SAID, skip_special_tokens=False))["choices"][0]
        assert answer["message"]["content"] == THOUGHT
        refused = await server.post("/v1/chat/completions", messages=SAID, tools=TOOLS)
        assert refused.status_code == 400
        assert "--tool-call-parser" in refused.json()["error"]["message"]

    answering(THOUGHT, test, tool_parser="none", reasoning_parser="none")


def test_a_server_reads_what_its_options_say(tmp_path: Path) -> None:
    """The options would be accepted, and the answers read as the template shows; or an unknown name be found late."""
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"chat_template": "{{ messages[0].content }}"}))
    options = {"tool_call_parser": "qwen25", "reasoning_parser": "deepseek-r1"}
    with server_process(*shadow(0, tmp_path, **options)) as process:
        printed = announced(process)
        url = printed.split()[2].partition("/v1/")[0]
        shown = httpx.get(f"{url}/server_info").json()["config"]
        assert {name: shown[name]["value"] for name in options} == {
            "tool_call_parser": "hermes",
            "reasoning_parser": "deepseek_r1",
        }
        body = {"messages": SAID, "max_tokens": 3, "tools": TOOLS}
        message = httpx.post(f"{url}/v1/chat/completions", json=body).json()["choices"][0]["message"]
        assert message["content"] == ""
        assert message["reasoning_content"]


@pytest.mark.parametrize("option", ["tool_call_parser", "reasoning_parser"])
def test_an_unknown_parser_is_refused_at_the_start(option: str) -> None:
    """A misspelt name would show in the first answer, if at all."""
    with pytest.raises(ConfigError, match=r"accepted: .*mistral") as error:
        check_parsers(ServerConfig(**{option: "hermse"}))  # type: ignore[arg-type]
    assert f"--{option.replace('_', '-')} 'hermse'" in str(error.value)
    with pytest.raises(ConfigError, match="without the other"):
        check_parsers(ServerConfig(tool_call_parser="openai", reasoning_parser="qwen3"))


def function(**fields: Any) -> list[dict[str, Any]]:
    return [{"type": "function", "function": fields}]


BAD: list[tuple[dict[str, Any], str]] = [
    ({"tools": [{"type": "function"}]}, "tools[0].function"),
    ({"tools": function(description="no name")}, "tools[0].function.name"),
    ({"tools": function(name="")}, "tools[0].function.name"),
    ({"tools": function(name="a b")}, "tools[0].function.name"),
    ({"tools": function(name="a") + function(name="a")}, "tools[1].function.name"),
    ({"tools": [{"type": "retrieval", "function": FUNCTION}]}, "tools[0].type"),
    ({"tools": function(name="a", parameters={"type": "string"})}, "tools[0].function.parameters.type"),
    ({"tools": function(name="a", parameters={"properties": [1]})}, "tools[0].function.parameters.properties"),
    ({"tools": function(name="a", parameters={"required": "a"})}, "tools[0].function.parameters.required"),
    ({"tools": function(name="a", parameters=[])}, "tools[0].function.parameters"),
    ({"tools": {}}, "tools"),
    ({"tools": function(name="a"), "tool_choice": "sometimes"}, "tool_choice"),
    ({"tools": function(name="a"), "tool_choice": {"type": "function"}}, "tool_choice.function"),
    ({"tools": function(name="a"), "tool_choice": {"type": "function", "function": {"name": "b"}}}, "tool_choice"),
    ({"tool_choice": "required"}, "tool_choice"),
    ({"tools": [], "tool_choice": {"type": "function", "function": {"name": "b"}}}, "tool_choice"),
    ({"functions": [{"name": "a"}]}, "functions"),
    ({"function_call": {"name": "a"}}, "function_call"),
    ({"tools": function(name="a"), "parallel_tool_calls": 1}, "parallel_tool_calls"),
]


def test_bad_tools_are_refused_by_name() -> None:
    """A wrong request must say what is wrong before anything is queued."""

    async def test(server: Scripted) -> None:
        for body, param in BAD:
            answer = await server.post("/v1/chat/completions", messages=SAID, **body)
            assert answer.status_code == 400, body
            error = answer.json()["error"]
            assert error["param"] == param, (body, error)
            assert param.rpartition(".")[2] in error["message"], error
        assert not server.submitted

    answering("Hi.", test)


def test_what_asks_for_nothing_is_accepted() -> None:
    """Clients send empty lists, nulls and the choice of what they do not have."""

    async def test(server: Scripted) -> None:
        for body in (
            {"tools": []},
            {"tools": None, "tool_choice": None, "parallel_tool_calls": None},
            {"tool_choice": "auto"},
            {"tool_choice": "none", "functions": [], "function_call": "none"},
            {"tools": function(name="a", strict=None, description=None, parameters=None)},
        ):
            assert (await server.chat(messages=SAID, **body))["choices"][0]["message"]["content"] == "Hi."

    answering("Hi.", test)


def test_required_calls_are_constrained() -> None:
    """`required` would be a wish; and a schema that cannot be used be found when the answer is generated."""

    async def test(server: Scripted) -> None:
        named = {"type": "function", "function": {"name": "weather"}}
        for choice in ("required", named):
            await server.chat(messages=SAID, tools=TOOLS, tool_choice=choice)
            assert '"weather' in server.submitted[-1].grammar.replace("\\", "")
        assert "now" not in server.submitted[-1].grammar
        strict = [{"type": "function", "function": {**FUNCTION, "strict": True}}]
        await server.chat(messages=SAID, tools=strict)
        assert server.submitted[-1].grammar
        await server.chat(messages=SAID, tools=strict, response_format={"type": "json_object"})
        assert server.submitted[-1].grammar
        for body in ({"tools": TOOLS}, {"tools": TOOLS, "tool_choice": "none"}, {}):
            await server.chat(messages=SAID, **body)
            assert not server.submitted[-1].grammar
        count = len(server.submitted)
        bad = {"type": "object", "properties": {"a": {"$ref": "https://example.org/schema"}}}
        tools = function(name="a", parameters=bad)
        answer = await server.post("/v1/chat/completions", messages=SAID, tools=tools, tool_choice="required")
        assert (answer.status_code, answer.json()["error"]["param"]) == (
            400,
            "tools[0].function.parameters.properties.a",
        )
        assert len(server.submitted) == count

    answering(TWO, test)


def test_ollama_calls_tools_and_thinks() -> None:
    """Ollama's clients expect arguments as an object, and reasoning as `thinking`."""

    async def test(server: Scripted) -> None:
        body = {"model": "scripted", "messages": SAID, "tools": TOOLS}
        whole = (await server.post("/api/chat", stream=False, think=True, **body)).json()
        functions = [call["function"] for call in whole["message"]["tool_calls"]]
        assert functions == [{"name": "weather", "arguments": {"city": "Ulm"}}, {"name": "now", "arguments": {}}]
        assert (whole["message"]["thinking"], whole["message"]["content"]) == ("Hm.", "Let me see.")
        lines = [json.loads(line) for line in (await server.post("/api/chat", **body)).text.splitlines()]
        messages = [line["message"] for line in lines]
        for name in ("thinking", "content"):
            assert "".join(message.get(name, "") for message in messages) == whole["message"][name]
        called = [call["function"] for message in messages for call in message.get("tool_calls", ())]
        assert called == functions
        shown = (await server.post("/api/show", model="scripted")).json()["capabilities"]
        assert {*shown} == {"completion", "tools", "thinking"}
        made = (await server.post("/api/generate", model="scripted", prompt="Hi", stream=False)).json()
        assert made["thinking"] == "Hm."

    answering(f"<think>Hm.</think>{TWO}", test)


def test_a_call_that_is_cut_off_is_text_for_ollama() -> None:
    """There is no object to give for half of its JSON, and nothing may be lost."""

    async def test(server: Scripted) -> None:
        answer = await server.post("/api/chat", model="scripted", messages=SAID, tools=TOOLS, stream=False)
        assert answer.json()["message"] == {"role": "assistant", "content": 'weather{"city": "U'}
        assert answer.json()["done_reason"] == "length"

    answering('<tool_call>\n{"name": "weather", "arguments": {"city": "U', test, ends=FinishReason.LENGTH)


def test_one_call_if_they_are_not_parallel() -> None:
    """A client that makes one call at a time would get two."""

    async def test(server: Scripted) -> None:
        message = (await server.chat(messages=SAID, tools=TOOLS, parallel_tool_calls=False))["choices"][0]["message"]
        assert calls_of(message) == [("weather", ULM)]
        assert server.submitted[-1].grammar, "the model is not held to one"

    answering(TWO, test)


def test_tools_count_as_tokens_of_the_prompt() -> None:
    """A client that counts its prompt would be refused for what the tools add to it."""

    async def test(server: Scripted) -> None:
        for body in ({"messages": SAID}, {"messages": SAID, "tools": TOOLS}):
            counted = (await server.post("/tokenize", **body)).json()["count"]
            assert counted == (await server.chat(**body))["usage"]["prompt_tokens"]

    answering("Yes.", test)

"""Tools of other kinds than functions: groups, those that take a text, those of other servers, and choices of some."""

from __future__ import annotations

import json
from typing import Any

import pytest

from agent_apis import events_of, response_of
from scripted import scripted
from serving import run
from sluice.http.apis.ollama.routes import API_VERSION

HEADER = "x-sluice-ignored-fields"
SAID = [{"role": "user", "content": "Look."}]
PARAMETERS = {"type": "object", "properties": {"a": {"type": "string"}}}
FUNCTION = {"type": "function", "name": "f", "parameters": PARAMETERS}
GROUP = {"type": "namespace", "name": "mcp__files", "description": "Files.", "tools": [FUNCTION]}
PATCH = {"type": "custom", "name": "apply", "format": {"type": "grammar", "syntax": "lark", "definition": "start: /x/"}}
HOSTED = [{"type": kind} for kind in ("web_search", "web_search_preview_2025_03_11", "local_shell", "tool_search")]


def called(name: str, arguments: Any) -> str:
    return f'<tool_call>{{"name": "{name}", "arguments": {json.dumps(arguments)}}}</tool_call>'


@pytest.mark.parametrize("streams", [False, True])
def test_the_tools_of_codex(streams: bool) -> None:
    """Every turn got a 400: `tools[1].type 'namespace' is not supported`."""
    reply = called("mcp__files__f", {"a": "1"}) + called("apply", {"input": "*** Begin\n+x"}) + called("f", {})

    async def test() -> None:
        async with scripted(reply) as server:
            body = {"input": SAID, "tools": [FUNCTION, GROUP, PATCH, *HOSTED], "tool_choice": "auto"}
            if streams:
                response = response_of(await events_of(server, "/v1/responses", **body))
            else:
                answer = await server.post("/v1/responses", **body)
                response = answer.json()
                named = answer.headers[HEADER].split(", ")
                assert set(named) == {"tools[2].format", *(f"tools[].{each['type']}" for each in HOSTED)}
            grouped, patch, plain = response["output"]
            assert (grouped["type"], grouped["name"], grouped["namespace"]) == ("function_call", "f", "mcp__files")
            assert json.loads(grouped["arguments"]) == {"a": "1"}
            assert (patch["type"], patch["name"], patch["input"]) == ("custom_tool_call", "apply", "*** Begin\n+x")
            assert (plain["name"], "namespace" in plain) == ("f", False)
            assert response["tools"][1] == GROUP
            shown = json.loads(server.prompts()[0].splitlines()[0].removeprefix("tools: "))
            assert [tool["function"]["name"] for tool in shown] == ["f", "mcp__files__f", "apply"]
            outputs = [
                {"type": f"{item['type']}_output", "call_id": item["call_id"], "output": "ok"}
                for item in response["output"]
            ]
            again = await server.post("/v1/responses", **body | {"input": [*SAID, *response["output"], *outputs]})
            assert again.status_code == 200, again.text
            assert reply.replace("</tool_call><", "</tool_call>\n<").splitlines()[1] in server.prompts()[-1]

    run(test)


ALLOWED = {"type": "allowed_tools", "mode": "required", "tools": [{"type": "function", "name": "f"}]}


@pytest.mark.parametrize(
    ("choice", "name"),
    [
        ({"type": "function", "name": "f", "namespace": "mcp__files"}, "mcp__files__f"),
        ({"type": "custom", "name": "apply"}, "apply"),
        (ALLOWED, "f"),
        (ALLOWED | {"tools": [*HOSTED, {"type": "function", "name": "f", "namespace": "mcp__files"}]}, "mcp__files__f"),
    ],
)
def test_choices_among_them(choice: Any, name: str) -> None:
    async def test() -> None:
        async with scripted(called(name, {})) as server:
            body = {"input": SAID, "tools": [FUNCTION, GROUP, PATCH], "tool_choice": choice}
            answer = await server.post("/v1/responses", **body)
            assert answer.status_code == 200, answer.text
            grammar = server.submitted[0].grammar
            assert [
                each for each in ("f", "mcp__files__f", "apply") if f'name\\\\\\": \\\\\\"{each}\\\\\\"' in grammar
            ] == [name]
            assert "apply" in server.prompts()[0]

    run(test)


def test_a_chat_allows_some_tools() -> None:
    tools = [{"type": "function", "function": {"name": name, "parameters": PARAMETERS}} for name in ("f", "g")]
    some = [{"type": "function", "function": {"name": "g"}}]

    async def test() -> None:
        async with scripted(called("f", {}) + called("g", {})) as server:
            choice = {"type": "allowed_tools", "allowed_tools": {"mode": "auto", "tools": some}}
            answer = await server.chat(messages=SAID, tools=tools, tool_choice=choice)
            message = answer["choices"][0]["message"]
            assert [call["function"]["name"] for call in message["tool_calls"]] == ["g"]
            assert '"f"' in server.prompts()[0]
            choice["allowed_tools"] = {"mode": "auto", "tools": [{"type": "function", "function": {"name": "owl"}}]}
            refused = await server.post("/v1/chat/completions", messages=SAID, tools=tools, tool_choice=choice)
            assert "'owl'" in refused.json()["error"]["message"]

    run(test)


def test_tools_of_anthropics_servers_are_skipped() -> None:
    async def test() -> None:
        async with scripted("Yes.") as server:
            tools = [{"type": "web_search_20250305", "name": "web_search"}, {"name": "f", "input_schema": PARAMETERS}]
            body = {"model": "scripted", "max_tokens": 9, "messages": SAID, "tools": tools}
            answer = await server.post("/v1/messages", **body)
            assert (answer.status_code, answer.headers[HEADER]) == (200, "tools[].web_search_20250305")

    run(test)


@pytest.mark.parametrize(
    "parameters",
    [{"type": ["object", "null"], "properties": {}}, {"type": "OBJECT", "required": None, "properties": None}, {}],
)
def test_shapes_of_parameters(parameters: Any) -> None:
    async def test() -> None:
        async with scripted(called("f", {})) as server:
            tools = [{"type": "function", "function": {"name": "f", "parameters": parameters}}]
            for choice in ("auto", "required"):
                await server.chat(messages=SAID, tools=tools, tool_choice=choice)

    run(test)


def test_what_codex_asks_of_ollama() -> None:
    async def test() -> None:
        async with scripted("Yes.") as server:
            assert (await server.http.get("/api/version")).json() == {"version": API_VERSION}
            assert tuple(map(int, API_VERSION.split("."))) >= (0, 13, 4)
            lines = (await server.post("/api/pull", model="scripted:latest")).text.splitlines()
            assert json.loads(lines[-1]) == {"status": "success"}
            assert (await server.post("/api/pull", name="scripted", stream=False)).json() == {"status": "success"}
            assert (await server.post("/api/pull", model="owl")).status_code == 404
            for path, body in (
                ("/v1/chat/completions", {"messages": SAID}),
                ("/v1/responses", {"input": SAID}),
                ("/v1/messages", {"messages": SAID, "max_tokens": 9}),
            ):
                assert (await server.post(path, model="scripted:latest", **body)).status_code == 200
                assert (await server.post(path, model="scripted:7b", **body)).status_code == 404

    run(test)

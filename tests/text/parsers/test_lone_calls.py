"""Answers that are nothing but the JSON of a call, without the tags of the model's format."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from sluice.config import ServerConfig
from sluice.http.base.parsers import choose_replies
from sluice.text.constraints.fits import fits
from sluice.text.parsers.events import Reply, whole_of
from sluice.text.parsers.formats import FORMATS
from sluice.text.parsers.reasoning import REASONING_FORMATS
from sluice.text.parsers.replies import ReplyFormat
from sluice.text.parsers.tools import Choice, Tool, ToolUse

SCHEMA = {
    "type": "object",
    "properties": {"city": {"type": "string"}, "days": {"type": "integer"}, "units": {"enum": ["C", "F"]}},
    "required": ["city"],
}
USE = ToolUse((Tool("weather", parameters=SCHEMA), Tool("now")))
ULM = {"city": "Ulm"}
CALL = json.dumps({"name": "weather", "arguments": ULM})
HERMES = ReplyFormat(FORMATS["hermes"], REASONING_FORMATS["qwen3"])


def read(text: str, *, use: ToolUse = USE, format: ReplyFormat = HERMES, is_cut: bool = False) -> Reply:
    """What a text is, whole and in every cut of two."""
    found = []
    for at in range(len(text) + 1):
        parser = format.parser(use, new_id=lambda: "1")
        found.append(whole_of([*parser.push(text[:at]), *parser.push(text[at:]), *parser.finish(is_cut=is_cut)]))
    assert all(each == found[0] for each in found)
    return found[0]


@pytest.mark.parametrize(
    "text",
    [
        f"```json\n{CALL}\n```",
        f"```\n{CALL}\n```\n",
        f" \n{CALL}\n",
        f"```json\n{CALL}",
        json.dumps({"name": "weather", "parameters": ULM}, indent=2),
        json.dumps({"arguments": ULM, "name": "weather"}),
        json.dumps({"type": "function", "function": {"name": "weather", "arguments": json.dumps(ULM)}}),
        f"[{CALL}]",
        f"```json\n[{CALL[:-2]},}},}},]\n```",
        f"<think>Hm.</think>\n\n```json\n{CALL}\n```",
    ],
)
def test_a_lone_call_is_a_call(text: str) -> None:
    """A coding model wrote 30 of 30 calls like this, and agents got text."""
    reply = read(text)
    (call,) = reply.calls
    assert (call.name, json.loads(call.arguments), call.is_complete, reply.text) == ("weather", ULM, True, "")


def test_two_calls() -> None:
    for text in (f"{CALL}\n{CALL}", f"[{CALL}, {CALL}]", f"```json\n{CALL}\n{CALL}\n```"):
        assert len(read(text).calls) == 2
        assert read(text, use=replace(USE, is_parallel=False)) == Reply(text)


@pytest.mark.parametrize(
    "text",
    [
        '{"name": "Ann", "arguments": {}}',
        '{"name": "weather", "arguments": {"days": 3}}',
        '{"name": "weather", "arguments": {"city": ["Ulm"]}}',
        '{"name": "weather", "arguments": {"city": "Ulm", "units": "K"}}',
        '{"name": "weather", "arguments": {"city": "Ulm"}, "age": 3}',
        '{"city": "Ulm"}',
        f"Like this: {CALL}",
        f"```json\n{CALL}\n```\nThat is how to call it.",
        f"```python\n{CALL}\n```",
        '{"name": "weather", "arguments": {"city": "Ulm"',
        "```",
        "`x`",
        "{",
        "",
    ],
)
def test_other_answers_are_text(text: str) -> None:
    assert read(text) == Reply(text)


def test_a_number_in_the_place_of_a_text() -> None:
    (call,) = read('{"name": "weather", "arguments": {"city": 89073, "days": "3"}}').calls
    assert json.loads(call.arguments) == {"city": "89073", "days": 3}


def test_nothing_is_called_where_nothing_may_be() -> None:
    assert read(CALL, use=replace(USE, choice=Choice.NONE)) == Reply(CALL)
    assert read(CALL, use=ToolUse()) == Reply(CALL)
    assert read(f"```json\n{CALL}", is_cut=True).calls == ()


@pytest.mark.parametrize("name", ["llama3_json", "json", "mistral", "qwen3_coder", "deepseek_v31"])
def test_other_formats(name: str) -> None:
    (call,) = read(f"```json\n{CALL}\n```", format=ReplyFormat(FORMATS[name])).calls
    assert json.loads(call.arguments) == ULM


def test_other_json_streams() -> None:
    """An answer that is the JSON of something else is not held back."""
    parser = HERMES.parser(USE)
    assert whole_of(parser.push('{"name": "Ann", "age": ')).text == '{"name": "Ann", "age":'
    parser = HERMES.parser(USE)
    assert whole_of(parser.push("```python\nprint(")).text == "```python\nprint("


def test_a_server_need_not_read_them() -> None:
    template = '<tool_call>{"name": , "arguments": }</tool_call>'
    for reads in (True, False):
        format = choose_replies(ServerConfig(lone_tool_calls=reads), template).format
        assert bool(read(CALL, format=format).calls) == reads


@pytest.mark.parametrize(
    ("value", "schema", "expected"),
    [
        ({"a": 1}, {"properties": {"a": {"$ref": "#/$defs/A"}}, "$defs": {"A": {"type": "INTEGER"}}}, True),
        ({"a": 1.5}, {"properties": {"a": {"type": "integer"}}}, False),
        ({"a": None}, {"properties": {"a": {"anyOf": [{"type": "string"}, {"type": "null"}]}}}, True),
        ({"b": 1}, {"properties": {}, "additionalProperties": False}, False),
        ({"a": [1, "x"]}, {"properties": {"a": {"type": "array", "items": {"type": "integer"}}}}, False),
        ({"a": True}, {"properties": {"a": {"type": "number"}}}, False),
        ({"a": 2}, {"allOf": [{"required": ["a"]}, {"properties": {"a": {"const": 2}}}]}, True),
        ({"a": {"a": {}}}, {"properties": {"a": {"$ref": "#"}}}, True),
        ({}, {"$ref": "#"}, True),
        ({"a": 1}, {"properties": {"a": False}}, False),
        ({"a": 1}, {"properties": {"a": {"type": "thing"}}}, True),
    ],
)
def test_fits(value: Any, schema: Any, expected: bool) -> None:
    assert fits(value, schema) == expected

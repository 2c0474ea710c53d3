"""Qwen3-Coder's arguments by tag: which of them a schema allows, and how slips of models are read."""

from __future__ import annotations

import json
from typing import Any

import pytest
from llguidance import LLMatcher, LLTokenizer

from sluice.text.constraints.errors import ConstraintError
from sluice.text.constraints.grammars import checked_grammar
from sluice.text.parsers.events import whole_of
from sluice.text.parsers.formats import FORMATS
from sluice.text.parsers.replies import ReplyFormat
from sluice.text.parsers.tools import Choice, Tool, ToolUse

BYTES = LLTokenizer("byte")
FORMAT = ReplyFormat(FORMATS["qwen3_coder"])
A = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
TEXT = {"type": "string"}


def call(**values: str) -> str:
    parameters = "".join(f"<parameter={name}>\n{value}\n</parameter>\n" for name, value in values.items())
    return f"<tool_call>\n<function=f>\n{parameters}</function>\n</tool_call>"


def tool(parameters: Any, *, strict: bool = False) -> Tool:
    return Tool("f", parameters=parameters, strict=strict, place="tools[0].function.parameters")


def allowed(use: ToolUse, text: str) -> bool:
    shape = FORMAT.shape(use, "", None, lambda _: None)
    assert shape is not None
    matcher = LLMatcher(BYTES, checked_grammar(shape).text, log_level=0)
    content = list(text.encode())
    return matcher.try_consume_tokens(content) == len(content) and matcher.is_accepting()


def arguments(use: ToolUse, text: str, *, is_cut: bool = False) -> tuple[Any, bool]:
    """The arguments of the one call that a text is, and whether it is complete; read whole and in every cut of two."""
    found = []
    for at in range(len(text)):
        parser = FORMAT.parser(use, new_id=lambda: "1")
        events = [*parser.push(text[:at]), *parser.push(text[at:]), *parser.finish(is_cut=is_cut)]
        found.append(whole_of(events))
    assert all(each == found[0] for each in found)
    (one,) = found[0].calls
    return (json.loads(one.arguments) if one.is_complete else one.arguments), one.is_complete


@pytest.mark.parametrize("choice", [{"is_parallel": False}, {"others": True}])
def test_arguments_can_be_written_where_the_answer_is_only_held_to_the_format(choice: dict[str, bool]) -> None:
    """With `parallel_tool_calls: false`, or another tool that is strict, every call came without arguments."""
    others = (Tool("g", strict=True),) if choice.get("others") else ()
    use = ToolUse((tool({**A, "additionalProperties": False}), *others), is_parallel="others" in choice)
    for text in (call(a="1"), call(a="1", note="two\nlines"), call(), "It rains."):
        assert allowed(use, text), text
    assert arguments(use, call(a="1")) == ({"a": 1}, True)


LIST = {
    "type": "object",
    "properties": {"a": {"type": "integer"}, "next": {"anyOf": [{"$ref": "#"}, {"type": "null"}]}},
    "required": ["a"],
}


@pytest.mark.parametrize(
    ("schema", "may", "may_not"),
    [
        ({"$ref": "#/$defs/A", "$defs": {"A": A}}, [{"a": "1"}], [{}, {"b": "1"}, {"a": "x"}]),
        ({"anyOf": [A, {"properties": {"b": TEXT}, "required": ["b"]}]}, [{"a": "1"}, {"b": "x"}], [{}]),
        ({"oneOf": [A, {"properties": {"b": TEXT}, "required": ["b"]}]}, [{"a": "1"}, {"b": "x"}], [{}]),
        ({"allOf": [A, {"properties": {"b": TEXT}, "required": ["b"]}]}, [{"a": "1", "b": "x"}], [{"a": "1"}]),
        ({**A, "additionalProperties": True}, [{"a": "1"}, {"a": "1", "b": "x"}], [{}]),
        ({**A, "additionalProperties": {"type": "integer"}}, [{"a": "1", "b": "2"}], [{"a": "1", "b": "x"}]),
        ({"patternProperties": {"^x-": TEXT}, "additionalProperties": False}, [{"x-b": "y"}, {}], [{"b": "y"}]),
        ({**A, "required": ["a", "b"]}, [{"a": "1", "b": "x"}], [{"a": "1"}]),
        (LIST, [{"a": "1", "next": '{"a": 2, "next": null}'}, {"a": "1", "next": "null"}], [{"a": "1", "next": "2"}]),
        ({"properties": {"a": {"$ref": "#/properties/b"}, "b": {"enum": [1]}}}, [{"a": "1", "b": "1"}], [{"a": "2"}]),
        ({"properties": {"a": {"type": "string", "enum": ["a", None, 1]}}}, [{"a": "a"}], [{"a": "null"}, {"a": "1"}]),
        ({"properties": {"a": {"enum": ["a", None, 1]}}}, [{"a": "a"}, {"a": "null"}, {"a": "1"}], [{"a": "b"}]),
        ({"properties": {"a": {"const": "x"}}}, [{"a": "x"}, {}], [{"a": "y"}]),
        ({"properties": {"a": {"const": 3}}}, [{"a": "3"}], [{"a": "4"}]),
        (
            {"properties": {"a": {"anyOf": [{"type": "string", "enum": ["x", ""]}, {"type": "null"}]}}},
            [{"a": "x"}, {"a": ""}, {"a": "null"}],
            [{"a": "y"}],
        ),
        ({"properties": {"größe": {"type": "number"}, "a b": True}}, [{"größe": "1.5", "a b": "["}], [{"größe": "x"}]),
        ({"properties": {}, "additionalProperties": False}, [{}], [{"a": "1"}]),
        ({"properties": {"a": {"type": ["integer", "null"]}}}, [{"a": "null"}, {"a": "7"}], [{"a": "x"}]),
    ],
)
def test_the_whole_schema_counts(schema: Any, may: list[dict[str, str]], may_not: list[dict[str, str]]) -> None:
    use = ToolUse((tool({"type": "object", **schema}),), Choice.REQUIRED)
    for values in may:
        assert allowed(use, call(**values)), values
    for values in may_not:
        assert not allowed(use, call(**values)), values


def test_what_a_lenient_schema_asks_for_in_vain_is_named() -> None:
    schema = {"type": "object", "properties": {"a": {"type": "array", "uniqueItems": True, "items": {"not": {}}}}}
    shape = FORMAT.shape(ToolUse((tool(schema),), Choice.REQUIRED), "", None, lambda _: None)
    assert shape is not None
    assert set(checked_grammar(shape).dropped) == {
        "tools[0].function.parameters.properties.a.uniqueItems",
        "tools[0].function.parameters.properties.a.items.not",
    }
    shape = FORMAT.shape(ToolUse((tool(schema, strict=True),)), "", None, lambda _: None)
    assert shape is not None
    with pytest.raises(ConstraintError, match=r"properties\.a.*not supported"):
        checked_grammar(shape)


@pytest.mark.parametrize(
    "schema", [{"required": ["b"], "additionalProperties": False}, {"properties": {"a": False}, "required": ["a"]}]
)
def test_a_schema_without_a_value_is_refused(schema: Any) -> None:
    with pytest.raises(ConstraintError):
        allowed(ToolUse((tool({"type": "object", **schema}),), Choice.REQUIRED), call())


TWO = ToolUse((tool({"type": "object", "properties": {"a": {"type": "integer"}, "b": TEXT}}),))
BEGIN = "<tool_call>\n<function=f>\n"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("<parameter=a>\n1\n<parameter=b>\n2\n</parameter>\n</function>\n</tool_call>", {"a": 1, "b": "2"}),
        ("<parameter=a>\n1\n</function>\n</tool_call>", {"a": 1}),
        ("<parameter=b>\n1\n</tool_call>", {"b": "1"}),
        ("<parameter=a>\n1\n</parameter>\n</tool_call>", {"a": 1}),
        ("<parameter=a>\n1\n</parameter>", {"a": 1}),
        ("<parameter=a>\n1\n</parameter>\n<parameter=a>\n2\n</parameter>\n</function>", {"a": 1}),
        ("<parameter=b>\nan </parameter> inside\n</parameter>\n</function>", {"b": "an </parameter> inside"}),
        ("<parameter=b>\n</function> <parameter=a>\n</parameter>", {"b": "</function> <parameter=a>"}),
        ("<parameter=b>\nx\n<parameter=c>\ny\n</parameter>\n</function>", {"b": "x\n<parameter=c>\ny"}),
        ("<parameter=a>1</parameter><parameter=b></parameter></function></tool_call>", {"a": 1, "b": ""}),
        ('{"a": 1, "b": "x"}\n</function>\n</tool_call>', {"a": 1, "b": "x"}),
        ("</function>\n</tool_call>", {}),
    ],
)
def test_slips_are_read_as_meant(text: str, expected: Any) -> None:
    assert arguments(TWO, BEGIN + text) == (expected, True)


@pytest.mark.parametrize("text", ["<parameter=a>\n1", "<parameter=b>\nx\n", "<parameter=a"])
def test_half_a_call_is_incomplete(text: str) -> None:
    assert not arguments(TWO, BEGIN + text)[1]


def test_a_call_that_was_cut_behind_an_argument_is_incomplete() -> None:
    """Further arguments may have come."""
    assert not arguments(TWO, BEGIN + "<parameter=a>\n1\n</parameter>\n", is_cut=True)[1]


def test_types_come_from_the_whole_schema() -> None:
    schema = {"$ref": "#/$defs/A", "$defs": {"A": {"properties": {"a": {"type": "string"}}}}}
    use = ToolUse((tool(schema),))
    assert arguments(use, call(a="5")) == ({"a": "5"}, True)


def test_names_that_look_like_the_end_of_their_tag() -> None:
    """`a>b` was read as `a`, and the rest as its value."""
    names = {"a>b": {"type": "integer"}, "a": {"type": "integer"}, " c": TEXT, "d": TEXT}
    use = ToolUse((tool({"type": "object", "properties": names}),))
    given = {"d": "x", "a>b": "1", " c": "y", "a": "2"}
    assert arguments(use, call(**given)) == ({"d": "x", "a>b": 1, " c": "y", "a": 2}, True)
    missing = BEGIN + "<parameter=d>\nx\n<parameter=a>b>\n1\n</function>\n</tool_call>"
    assert arguments(use, missing) == ({"d": "x", "a>b": 1}, True)

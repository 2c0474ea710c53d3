"""Schemas as SDKs write them: what asks for nothing, what is spelled otherwise, and what cannot be compiled."""

from __future__ import annotations

from typing import Any

import pytest
from llguidance import LLMatcher, LLTokenizer

from sluice.text.constraints.errors import ConstraintError
from sluice.text.constraints.grammars import checked_grammar
from sluice.text.constraints.shapes import JsonSchema

BYTES = LLTokenizer("byte")
AHEAD = r"^(?!^[-+.]*$)[+-]?0*\d*\.?\d*$"


def of(schema: Any) -> dict[str, Any]:
    """An object with a property of a schema."""
    return {"type": "object", "properties": {"a": schema, "b": {"type": "integer"}}, "required": ["a", "b"]}


def allows(schema: Any, text: str, *, is_lenient: bool = True) -> bool:
    shape = JsonSchema(schema, "s", is_lenient=is_lenient)
    matcher = LLMatcher(BYTES, checked_grammar(shape).text, log_level=0)
    content = list(text.encode())
    return matcher.try_consume_tokens(content) == len(content) and matcher.is_accepting()


@pytest.mark.parametrize(
    ("schema", "place"),
    [
        ({"type": "string", "pattern": AHEAD}, "pattern"),
        ({"type": "string", "pattern": r"(?<=a)b"}, "pattern"),
        ({"type": "string", "pattern": r"(a)\1"}, "pattern"),
        ({"type": "string", "pattern": "("}, "pattern"),
        ({"type": "string", "pattern": "^(?=.*[0-9]).{8}$", "minLength": 8}, "pattern"),
        ({"type": "object", "patternProperties": {"^(?!x)": {"type": "string"}}}, "patternProperties"),
        ({"type": "string", "format": "color"}, "format"),
        ({"type": "array", "uniqueItems": True, "items": {"type": "string"}}, "uniqueItems"),
        ({"enum": "abc"}, "enum"),
        ({"type": "thing"}, "type"),
        ({"type": "string", "minLength": "1"}, "minLength"),
        ({"anyOf": []}, "anyOf"),
        ({"type": "string", "enum": ["x"], "anyOf": [{"type": "string", "pattern": "(?=x)"}]}, "anyOf.0.pattern"),
        ({"type": "string", "minLength": 5, "maxLength": 2}, ""),
    ],
)
def test_what_cannot_be_compiled_is_left_out_and_named(schema: Any, place: str) -> None:
    """One pattern that the engine cannot compile refused the whole request, and a strict one did not say which."""
    shape = JsonSchema(of(schema), "s", is_lenient=True)
    (dropped,) = checked_grammar(shape).dropped
    assert dropped.startswith("s.properties.a")
    assert dropped.endswith(place)
    with pytest.raises(ConstraintError) as refused:
        checked_grammar(JsonSchema(of(schema), "s"))
    assert refused.value.place.startswith("s.properties.a")


def test_the_rest_of_a_schema_is_kept() -> None:
    schema = of({"type": "string", "pattern": AHEAD})
    assert allows(schema, '{"a": "x", "b": 1}')
    assert not allows(schema, '{"a": "x", "b": "1"}')
    assert not allows(schema, '{"a": 1, "b": 1}')
    defined = {"$defs": {"A": {"type": "string", "pattern": AHEAD}}, **of({"$ref": "#/$defs/A"})}
    assert checked_grammar(JsonSchema(defined, "s", is_lenient=True)).dropped == ("s.$defs.A.pattern",)
    assert allows(defined, '{"a": "x", "b": 1}')


@pytest.mark.parametrize("is_lenient", [True, False])
@pytest.mark.parametrize(
    ("schema", "may", "may_not"),
    [
        ({"type": "str"}, ['"x"'], ["1"]),
        ({"type": "STRING"}, ['"x"'], ["1"]),
        ({"type": "OBJECT", "properties": {"c": {"type": "INTEGER"}}}, ['{"c": 1}'], ["1"]),
        ({"type": "any"}, ['"x"', "1", "null"], []),
        ({"type": ["int", None]}, ["1", "null"], ['"x"']),
        ({"type": "float"}, ["1.5"], ['"x"']),
        ({"type": "list", "items": {"type": "bool"}}, ["[true]"], ["[1]"]),
        ({"type": "string", "nullable": True}, ['"x"', "null"], ["1"]),
        ({"type": "string", "enum": ["x"], "nullable": True}, ['"x"', "null"], ['"y"']),
        ({"type": "integer", "format": "int32"}, ["5", "-2147483648"], ["2147483648"]),
        ({"type": "integer", "format": "int64", "minimum": 1}, ["5"], ["0"]),
        ({"type": "number", "format": "double"}, ["5.5"], ['"x"']),
        ({"type": "string", "pattern": None, "format": None, "minLength": 1.0, "enum": None}, ['"x"'], ['""']),
        ({"type": "object", "properties": None, "required": None, "additionalProperties": None}, ["{}"], ["1"]),
        ({"type": "integer", "required": True, "exclusiveMinimum": True, "minimum": 0}, ["1"], ["0"]),
    ],
)
def test_other_spellings(schema: Any, may: list[str], may_not: list[str], is_lenient: bool) -> None:
    for text in may:
        assert allows(of(schema), f'{{"a": {text}, "b": 1}}', is_lenient=is_lenient), text
    for text in may_not:
        assert not allows(of(schema), f'{{"a": {text}, "b": 1}}', is_lenient=is_lenient), text

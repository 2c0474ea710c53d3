"""Whatever a schema allows is valid: random walks through its grammar, checked by `jsonschema`."""

from __future__ import annotations

import json
import random
import re
import sys
from typing import Any

import jsonschema
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from llguidance import LLMatcher, LLTokenizer

from schemas import schemas
from sluice.text.constraints.errors import ConstraintError
from sluice.text.constraints.grammars import checked_grammar, grammar_of
from sluice.text.constraints.shapes import JsonSchema

BYTES = LLTokenizer("byte")
END = BYTES.eos_token
LONGEST = 600
CLOSING = {*b'"]}'}


def walk(grammar: str, choices: random.Random) -> bytes | None:
    """Return the bytes of one walk through a grammar, in which closing is likely; None if it does not end soon."""
    matcher = LLMatcher(BYTES, grammar, log_level=0)
    text = bytearray()
    while len(text) < LONGEST:
        bits = np.frombuffer(matcher.compute_bitmask(), dtype=np.uint8)
        allowed = np.flatnonzero(np.unpackbits(bits, bitorder="little")).tolist()
        assert allowed, matcher.get_error()
        closing = [token for token in allowed if token in CLOSING or token == END]
        token = choices.choice(closing if closing and choices.random() < 0.3 else allowed)
        if token == END:
            return bytes(text)
        assert matcher.consume_token(token), matcher.get_error()
        text.append(token)
    return None


@settings(max_examples=100)
@given(schemas(), st.randoms(use_true_random=False))
def test_what_a_grammar_allows_its_schema_does(schema: Any, choices: random.Random) -> None:
    """A keyword that the conversion loses is one that answers do not keep to."""
    text = walk(grammar_of(JsonSchema(schema)), choices)
    if text is not None:
        jsonschema.Draft202012Validator(schema).validate(json.loads(text))


KEYWORDS: list[tuple[str, Any, Any, Any]] = [
    ("type", {"type": "integer"}, 3, 1.5),
    ("type of several", {"type": ["string", "null"]}, None, 3),
    ("enum", {"enum": [1, "a", None, {"b": [True]}]}, {"b": [True]}, 2),
    ("const", {"const": {"a": 1}}, {"a": 1}, {"a": 2}),
    ("minimum", {"type": "integer", "minimum": -5}, -5, -6),
    ("maximum", {"type": "number", "maximum": 2.5}, 2.5, 2.51),
    ("exclusiveMinimum", {"type": "integer", "exclusiveMinimum": 3}, 4, 3),
    ("exclusiveMaximum", {"type": "number", "exclusiveMaximum": 0}, -0.5, 0),
    ("exclusiveMinimum near maximum", {"type": "number", "exclusiveMinimum": 0, "maximum": 0.5}, 0.25, 0),
    ("multipleOf", {"type": "integer", "multipleOf": 7}, 49, 50),
    ("minLength", {"type": "string", "minLength": 2}, "éü", "é"),
    ("maxLength", {"type": "string", "maxLength": 2}, "ab", "abc"),
    ("pattern", {"type": "string", "pattern": "^a[0-9]$"}, "a1", "b1"),
    ("pattern found anywhere", {"type": "string", "pattern": "b"}, "abc", "acc"),
    ("format", {"type": "string", "format": "date"}, "2026-11-22", "22.11.2026"),
    ("format uuid", {"type": "string", "format": "uuid"}, "8d0f1c1e-3a52-4d0b-9d3e-0a1b2c3d4e5f", "8d0f"),
    ("items", {"type": "array", "items": {"type": "boolean"}}, [True], [1]),
    ("prefixItems", {"type": "array", "prefixItems": [{"const": 1}], "items": False}, [1], [1, 2]),
    ("minItems", {"type": "array", "items": {"type": "integer"}, "minItems": 2}, [1, 2], [1]),
    ("maxItems", {"type": "array", "items": {"type": "integer"}, "maxItems": 1}, [1], [1, 2]),
    ("properties", {"type": "object", "properties": {"a": {"type": "integer"}}}, {"a": 1}, {"a": "1"}),
    ("required", {"type": "object", "properties": {"a": {}, "b": {}}, "required": ["b"]}, {"b": 1}, {"a": 1}),
    ("required but not described", {"type": "object", "required": ["z"]}, {"z": 1}, {}),
    ("additionalProperties", {"type": "object", "additionalProperties": {"type": "null"}}, {"x": None}, {"x": 1}),
    (
        "patternProperties",
        {"type": "object", "patternProperties": {"^n_": {"type": "integer"}}, "additionalProperties": False},
        {"n_a": 1},
        {"n_a": "1"},
    ),
    ("minProperties", {"type": "object", "minProperties": 1}, {"a": 1}, {}),
    ("maxProperties", {"type": "object", "maxProperties": 1}, {"a": 1}, {"a": 1, "b": 2}),
    ("anyOf", {"anyOf": [{"type": "integer"}, {"const": "x"}]}, "x", "y"),
    ("oneOf", {"oneOf": [{"type": "integer"}, {"type": "string", "maxLength": 1}]}, "y", "yy"),
    (
        "oneOf told apart by a constant",
        {
            "oneOf": [
                {"type": "object", "properties": {"k": {"const": "a"}, "n": {"type": "integer"}}, "required": ["k"]},
                {"type": "object", "properties": {"k": {"const": "b"}, "s": {"type": "string"}}, "required": ["k"]},
            ]
        },
        {"k": "b", "s": "x"},
        {"k": "a", "n": "x"},
    ),
    ("allOf", {"allOf": [{"type": "integer", "minimum": 3}, {"maximum": 4}]}, 4, 5),
    ("$ref", {"$defs": {"a": {"type": "integer"}}, "$ref": "#/$defs/a"}, 1, "1"),
    ("$ref of older drafts", {"definitions": {"a b": {"type": "null"}}, "$ref": "#/definitions/a%20b"}, None, 1),
    (
        "$ref that comes back",
        {
            "$defs": {
                "t": {
                    "type": "object",
                    "properties": {"t": {"type": "array", "items": {"$ref": "#/$defs/t"}}},
                    "required": ["t"],
                }
            },
            "$ref": "#/$defs/t",
        },
        {"t": [{"t": []}]},
        {"t": [{}]},
    ),
]


@pytest.mark.parametrize(("name", "schema", "valid", "invalid"), KEYWORDS, ids=[each[0] for each in KEYWORDS])
def test_every_keyword_is_held_to(name: str, schema: Any, valid: Any, invalid: Any) -> None:
    """In the JSON that `json.dumps` writes, which has the separators of a constrained answer."""
    jsonschema.validate(valid, schema)
    assert not jsonschema.Draft202012Validator(schema).is_valid(invalid) or "format" in schema
    grammar = grammar_of(JsonSchema(schema))
    assert accepts(grammar, json.dumps(valid, ensure_ascii=False))
    assert not accepts(grammar, json.dumps(invalid, ensure_ascii=False))


def accepts(grammar: str, text: str) -> bool:
    matcher = LLMatcher(BYTES, grammar, log_level=0)
    content = list(text.encode())
    return matcher.try_consume_tokens(content) == len(content) and matcher.is_accepting()


def test_minus_zero_is_not_below_zero() -> None:
    schema = {"type": "number", "exclusiveMaximum": 0, "minimum": -0.5}
    assert not accepts(grammar_of(JsonSchema(schema)), "-0")


@pytest.mark.parametrize("number", [2**53 + 1, -(2**53) - 1, 1234567890123456789, 0.9452706955539223, 1.602176634e-19])
@pytest.mark.parametrize("keyword", ["const", "enum"])
def test_a_number_that_would_become_another_is_refused(keyword: str, number: float) -> None:
    """An identifier of 19 digits was answered with another one."""
    value = {"id": number} if keyword == "const" else [0, number]
    with pytest.raises(ConstraintError, match=re.escape(f"{keyword} has the number {number}")):
        grammar_of(JsonSchema({"type": "object", "properties": {"a": {keyword: value}}}))


@pytest.mark.parametrize("number", [2**53, -(2**53), 0, -1.5, 0.1, 123456789.123456, 3.141592653589793, 6.02214076e23])
def test_a_number_that_is_kept_is_accepted(number: float) -> None:
    matcher = LLMatcher(BYTES, grammar_of(JsonSchema({"const": number})), log_level=0)
    assert float(bytes(matcher.compute_ff_tokens())) == number


BOUNDS: list[tuple[str, Any, float, float | None]] = [
    ("64 bits", {"type": "integer", "minimum": -(2**63), "maximum": 2**63 - 1}, -(2**53), 2**53 + 1),
    ("64 bits or null", {"type": ["integer", "null"], "minimum": -(2**63)}, 7, -(2**53) - 1),
    ("doubles", {"type": "number", "minimum": -sys.float_info.max, "maximum": sys.float_info.max}, 1.5e9, None),
]


@pytest.mark.parametrize(("name", "schema", "valid", "invalid"), BOUNDS, ids=[each[0] for each in BOUNDS])
def test_the_bounds_of_number_types_are_accepted(name: str, schema: Any, valid: float, invalid: float | None) -> None:
    """Schemas that are made from classes of Java, Rust or protobuf have them, and were refused."""
    grammar = grammar_of(JsonSchema(schema))
    assert accepts(grammar, json.dumps(valid))
    assert invalid is None or not accepts(grammar, json.dumps(invalid))


def test_a_far_bound_is_left_out_where_that_is_allowed() -> None:
    schema = {"type": "number", "maximum": 3.4028235e38}
    checked = checked_grammar(JsonSchema(schema, is_lenient=True))
    assert accepts(checked.text, "2.5")
    assert checked.dropped == ("maximum",)
    with pytest.raises(ConstraintError, match=re.escape("maximum 3.4028235e+38 is too far from zero")):
        grammar_of(JsonSchema(schema))

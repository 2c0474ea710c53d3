"""Shapes as grammars: which texts they allow, and what is refused by its place."""

from __future__ import annotations

import json
from typing import Any

import pytest
from llguidance import LLMatcher, LLTokenizer

from sluice.text.constraints.errors import ConstraintError
from sluice.text.constraints.grammars import checked_grammar, grammar_of
from sluice.text.constraints.shapes import (
    AnyOf,
    Choice,
    FreeText,
    Grammar,
    JsonSchema,
    Literal,
    Regex,
    Repeated,
    Sequence,
    Shape,
    Tag,
    Tagged,
    TextUntil,
    after_reasoning,
)

BYTES = LLTokenizer("byte")
ITEM = {"type": "object", "properties": {"a": {"type": "integer"}, "b": {"type": "string"}}, "required": ["a"]}
CALL = Tag("<call>\n", JsonSchema(ITEM), "\n</call>")
CALLED = '<call>\n{"a": 1}\n</call>'


def allows(shape: Shape, text: str) -> bool:
    """Return whether a shape allows a text, from its first byte to its last."""
    matcher = LLMatcher(BYTES, grammar_of(shape), log_level=0)
    content = list(text.encode())
    return matcher.try_consume_tokens(content) == len(content) and matcher.is_accepting()


def refusal(shape: Shape) -> str:
    with pytest.raises(ConstraintError) as refused:
        grammar_of(shape)
    return str(refused.value)


@pytest.mark.parametrize(
    ("shape", "allowed", "forbidden"),
    [
        (JsonSchema(ITEM), ['{"a": 1, "b": "x"}', '{"a": 1}'], ['{"a":1}', '{"a":  1}', '{"a": "1"}', '{"b": "x"}']),
        (JsonSchema(json.dumps(ITEM)), ['{"a": 1}'], ["{}"]),
        (JsonSchema(ITEM, whitespace_pattern=r"[ \n]{0,2}"), ['{"a":1}', '{\n"a":  1}'], ['{"a":   1}']),
        (JsonSchema({**ITEM, "x-guidance": {"whitespace_flexible": False}}), ['{"a":1}'], ['{"a": 1}']),
        (JsonSchema(True), ["1", '[1, {"a": null}]'], ["", "[1,2]"]),
        (Regex(r"\d{2}/[a-c]+"), ["12/abc"], ["12/d", "x12/a", "١٢/a"]),
        (Choice(("yes", 'né"\n', "a\0b")), ["yes", 'né"\n', "a\0b"], ["ye", "no", "yesyes"]),
        (Grammar('root ::= "a" [0-9]+'), ["a12"], ["a", "b1"]),
        (Grammar('start: "a" B\nB: /[0-9]+/'), ["a12"], ["a", "b1"]),
        (Grammar('start: "<b>" B // <c>\nB: /<[0-9]>+/'), ["<b><1>"], ["<b>"]),
        (Sequence((Literal("x"), AnyOf((Literal("y"), Regex("z+"))))), ["xy", "xzz"], ["x", "xyz"]),
        (TextUntil("</t>"), ["</t>", "a\n<b</t>"], ["a", "</t></t>", "</t>a"]),
        (after_reasoning(JsonSchema(ITEM), "</t>"), ['hm </t>{"a": 1}', '</t>\n\n{"a": 1}'], ['{"a": 1}', "hm"]),
        (CALL, [CALLED], [f"x{CALLED}", "x", "<call>\n{}\n</call>"]),
        (Repeated(CALL, "\n", 2), [CALLED, f"{CALLED}\n{CALLED}"], [CALLED * 2, f"{CALLED}\n{CALLED}\n{CALLED}", ""]),
        (Tag("<f>", FreeText(), "</f>"), ["<f></f>", "<f>a<b</f>"], ["<f>a", "<f>a</f>b"]),
        (Tagged((CALL,), ("<call>",)), ["", "hi", f"hi {CALLED} there {CALLED}"], ["<call>", "a<call>b", "<call>\n{}"]),
        (Tagged((CALL,), ("<call>",), at_least_one=True), [f"hi{CALLED}", f"{CALLED}hi"], ["", "hi"]),
        (Tagged((CALL,), ("<call>",), stops_after_one=True), ["hi", f"hi{CALLED}"], [f"{CALLED}hi"]),
        (
            Tagged((Tag("<f=a>", Regex("1+"), "</f>"), Tag("<f=b>", Regex("2+"), "</f>")), ("<f=",)),
            ["<f=a>1</f><f=b>2</f>", "x"],
            ["<f=a>2</f>", "<f=c>1</f>"],
        ),
    ],
)
def test_a_shape_allows_what_it_describes_and_nothing_else(
    shape: Shape, allowed: list[str], forbidden: list[str]
) -> None:
    """A converter that escapes a text wrongly, or is lazy where it must not be, allows other answers."""
    assert [text for text in allowed if not allows(shape, text)] == []
    assert [text for text in forbidden if allows(shape, text)] == []


RECURSIVE = {"type": "object", "properties": {"a": {"$ref": "#/$defs/a"}}, "required": ["a"]}
DEEP: Any = {"type": "string"}
for _ in range(64):
    DEEP = {"anyOf": [DEEP]}


@pytest.mark.parametrize(
    ("shape", "said"),
    [
        (JsonSchema("{", "f"), "f: the schema is not JSON"),
        (JsonSchema([1], "f"), "f: a schema must be an object, true or false, got [1]"),
        (JsonSchema({"properties": {"a": 1}}, "f"), "f.properties.a: a schema must be an object"),
        (JsonSchema({"type": "strin"}, "f"), 'f: type cannot be "strin"'),
        (JsonSchema({"items": {"uniqueItems": True}}, "f"), "f.items: the keyword 'uniqueItems' is not supported"),
        (JsonSchema({"format": "color"}, "f"), "f: the format 'color' is not supported; supported are date, "),
        (JsonSchema({"$ref": "https://example.com/a.json"}, "f"), "f: $ref 'https://example.com/a.json' is not in the"),
        (JsonSchema({"$ref": "file:///etc/passwd"}, "f"), "nothing is fetched"),
        (JsonSchema({"$ref": "#/$defs/no"}, "f"), "f: $ref '#/$defs/no' names no schema"),
        (JsonSchema({"$defs": {"a": RECURSIVE}, "$ref": "#/$defs/a"}, "f"), "requires itself"),
        (JsonSchema({"$defs": {"a": {"$ref": "#/$defs/a"}}, "$ref": "#/$defs/a"}, "f"), "requires itself"),
        (JsonSchema({"type": "string", "oneOf": [{"minLength": 1}, {"maxLength": 3}]}, "f"), "use anyOf"),
        (JsonSchema(DEEP, "f"), "f: the schema is nested more than 120 levels deep"),
        (JsonSchema({"enum": list(range(40_000))}, "f"), "f: the schema has more than 32768 values"),
        (JsonSchema({"enum": ["x" * 300_000]}, "f"), "at most 262144 are accepted"),
        (JsonSchema(False, "f"), "f: the schema false allows no value"),
        (JsonSchema({"x-guidance": {"spaces": 1}}, "f"), "unknown field `spaces`"),
        (Regex("(", "f"), "f: at 2(8): invalid regex"),
        (Regex("(?=a)b", "f"), "look-around"),
        (Regex("", "f"), "f: a regular expression must not be empty"),
        (Regex(r"[^\s\S]", "f"), "f: it allows no answer"),
        (Choice((), "f"), "f: a choice must be a non-empty list"),
        (Choice(("a", ""), "f"), "non-empty texts"),
        (Grammar("hello", "f"), "f: it has no rule `start`"),
        (Grammar("start: other", "f"), 'unknown name: "other"'),
        (Grammar("start: x\nx: x", "f"), "f: it allows no answer"),
        (Grammar("root ::= " + "(" * 5000 + '"a"' + ")" * 5000, "f"), "f: the grammar is nested too deeply"),
        (Grammar('start: x\nx[stop="b"]: /a+/', "f"), "f: the option stop of a rule is not supported"),
        (Grammar('start: <|im_end|> "a"', "f"), "f: special tokens, as <|im_end|>, are not supported"),
        (Grammar('start: "a" <[7]>', "f"), "f: special tokens, as <[7]>, are not supported"),
        (Tagged((CALL,), ("<x",), place="f"), "f: no tag begins with the trigger '<x'"),
    ],
)
def test_what_cannot_be_used_is_refused_by_its_place(shape: Shape, said: str) -> None:
    """An engine that fails to compile it later can only end the request."""
    assert said in refusal(shape)


FAULTY = JsonSchema({"type": "strin"}, "tools[1].function.parameters")
FINE = JsonSchema(ITEM, "tools[0].function.parameters")
FAT = JsonSchema({"enum": ["x" * 140_000]}, "tools[2].function.parameters")


@pytest.mark.parametrize(
    ("shape", "said"),
    [
        (AnyOf((FINE, FAULTY)), 'tools[1].function.parameters: type cannot be "strin"'),
        (Tagged((CALL, Tag("<call>[", FAULTY, "]")), ("<call>",)), "tools[1].function.parameters: type cannot"),
        (Sequence((FINE, FAT, FAT)), "tools: it makes a grammar of "),
        (Sequence((JsonSchema({}, "response_format.schema"), FAT, FAT)), "response_format and tools: it makes"),
        (AnyOf((FAT, Repeated(FAT))), "tools[2].function.parameters: it makes a grammar of "),
    ],
)
def test_the_part_that_is_at_fault_is_named(shape: Shape, said: str) -> None:
    """The first tool was named for the fault of another. Where only all together are too much, all are."""
    assert refusal(shape).startswith(said)


def test_a_lenient_schema_loses_what_is_not_supported_and_says_so() -> None:
    shape = JsonSchema({"type": "array", "uniqueItems": True, "items": {"format": "color"}}, "f", is_lenient=True)
    assert checked_grammar(shape).dropped == ("f.uniqueItems", "f.items.format")
    assert allows(shape, "[1, 1]")


def test_a_keyword_that_asks_for_nothing_is_no_reason_to_refuse() -> None:
    """zod and pydantic write such keywords."""
    schema = {"type": "object", "propertyNames": {"type": "string"}, "uniqueItems": False, "format": "path"}
    assert checked_grammar(JsonSchema(schema)).dropped == ()


@pytest.mark.parametrize(
    ("schema", "more"),
    [
        (ITEM, False),
        ({**ITEM, "additionalProperties": True}, True),
        ({"type": "object"}, True),
        ({**ITEM, "required": ["a", "b"], "minProperties": 3}, True),
        ({"anyOf": [ITEM, {"type": "null"}]}, False),
        ({"$defs": {"i": ITEM}, "$ref": "#/$defs/i"}, False),
        ({"allOf": [ITEM, {"type": "object", "properties": {"more": {"type": "integer"}}}]}, True),
        ({"$defs": {"i": ITEM}, "$ref": "#/$defs/i", "properties": {"more": {"type": "integer"}}}, True),
    ],
)
def test_an_object_is_closed_where_no_other_part_of_the_schema_adds_to_it(schema: Any, more: bool) -> None:
    """A model that may go on adding properties does; one that may not where it must has no answer."""
    text = '{"a": 1, "b": "x", "more": 1}'
    assert allows(JsonSchema(schema), text) == more

"""Fields that constrain an answer: what they ask for in each API, and what is refused before it is queued."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from serving import serving
from sluice.http.apis.sglang import parse_generate
from sluice.http.call.openai import parse_chat, parse_completion
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
)
from sluice.types import Submit

HI = [{"role": "user", "content": "hi"}]
SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
TEXT = json.dumps(SCHEMA)
NAMED = "response_format.json_schema.schema"
CALL = {"begin": "<f>", "schema": SCHEMA, "end": "</f>"}
OLDER = {"type": "structural_tag", "structures": [CALL], "triggers": ["<f"]}
AT = "structural_tag.format"
TAG = {"type": "tag", "begin": "<f>", "content": {"type": "json_schema", "json_schema": SCHEMA}, "end": "</f>"}


def named(schema: Any, **others: Any) -> dict[str, Any]:
    return {"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": schema, **others}}}


def tag(place: str) -> Tag:
    return Tag("<f>", JsonSchema(SCHEMA, f"{place}.content.json_schema"), "</f>")


def formatted(**content: Any) -> dict[str, Any]:
    return {"structural_tag": json.dumps({"type": "structural_tag", "format": content})}


ASKED: list[tuple[dict[str, Any], Shape | None]] = [
    ({"response_format": {"type": "text"}}, None),
    ({"response_format": {"type": "json_object"}}, JsonSchema({"type": "object"}, "response_format.schema")),
    ({"response_format": {"type": "json_object", "schema": SCHEMA}}, JsonSchema(SCHEMA, "response_format.schema")),
    (named(SCHEMA, strict=True), JsonSchema(SCHEMA, NAMED)),
    (named(SCHEMA), JsonSchema(SCHEMA, NAMED)),
    (named(SCHEMA, strict=False), JsonSchema(SCHEMA, NAMED, is_lenient=True)),
    ({"structured_outputs": {"json": TEXT}}, JsonSchema(TEXT, "structured_outputs.json")),
    (
        {"structured_outputs": {"json": SCHEMA, "whitespace_pattern": " *", "disable_fallback": True}},
        JsonSchema(SCHEMA, "structured_outputs.json", whitespace_pattern=" *"),
    ),
    (
        {"structured_outputs": {"json_object": True}},
        JsonSchema({"type": "object"}, "structured_outputs.json_object"),
    ),
    ({"structured_outputs": {"json_object": False}}, None),
    ({"structured_outputs": {"regex": "a+"}}, Regex("a+", "structured_outputs.regex")),
    ({"structured_outputs": {"choice": ["a", "b"]}}, Choice(("a", "b"), "structured_outputs.choice")),
    ({"structured_outputs": {"grammar": "start: x"}}, Grammar("start: x", "structured_outputs.grammar")),
    (
        {"guided_json": SCHEMA, "guided_whitespace_pattern": " ?", "guided_decoding_backend": "xgrammar"},
        JsonSchema(SCHEMA, "guided_json", whitespace_pattern=" ?"),
    ),
    ({"guided_regex": "a+"}, Regex("a+", "guided_regex")),
    ({"guided_choice": ["a"]}, Choice(("a",), "guided_choice")),
    ({"guided_grammar": "start: x"}, Grammar("start: x", "guided_grammar")),
    ({"json_schema": TEXT}, JsonSchema(TEXT, "json_schema")),
    ({"regex": "a+"}, Regex("a+", "regex")),
    ({"ebnf": "root ::= x"}, Grammar("root ::= x", "ebnf")),
    ({"grammar": "root ::= x"}, Grammar("root ::= x", "grammar")),
    (
        {"response_format": OLDER},
        Tagged(
            (Tag("<f>", JsonSchema(SCHEMA, "response_format.structures[0].schema"), "</f>"),),
            ("<f",),
            place="response_format",
        ),
    ),
    (formatted(**TAG), tag(AT)),
    (
        formatted(type="triggered_tags", triggers=["<f"], tags=[TAG], at_least_one=True, stop_after_first=True),
        Tagged((tag(f"{AT}.tags[0]"),), ("<f",), True, True, AT),
    ),
    (
        formatted(type="tags_with_separator", separator=",", tags=[TAG]),
        AnyOf((Repeated(AnyOf((tag(f"{AT}.tags[0]"),)), ","), Literal(""))),
    ),
    (
        formatted(
            type="sequence",
            elements=[
                {"type": "const_string", "value": "a"},
                {"type": "or", "elements": [{"type": "regex", "pattern": "b+"}, {"type": "any_text"}]},
                {"type": "grammar", "grammar": "start: x"},
            ],
        ),
        Sequence(
            (
                Literal("a"),
                AnyOf((Regex("b+", f"{AT}.elements[1].elements[0].pattern"), FreeText())),
                Grammar("start: x", f"{AT}.elements[2].grammar"),
            )
        ),
    ),
]


@pytest.mark.parametrize(("fields", "shape"), ASKED)
def test_completions_and_chats_take_the_names_of_every_api(fields: dict[str, Any], shape: Shape | None) -> None:
    """A name that is read as another one constrains the answer in another way."""
    assert parse_chat(json.dumps({"messages": HI, **fields}).encode()).shape == shape
    assert parse_completion(json.dumps({"prompt": "a", **fields}).encode()).shape == shape


@pytest.mark.parametrize("name", ["json_schema", "regex", "ebnf", "structural_tag"])
def test_sampling_params_of_sglang(name: str) -> None:
    value = {"json_schema": TEXT, "regex": "a+", "ebnf": "root ::= x", "structural_tag": json.dumps(OLDER)}[name]
    shape = parse_generate(json.dumps({"text": "a", "sampling_params": {name: value}}).encode()).shape
    place = f"sampling_params.{name}"
    expected: dict[str, Shape] = {
        "json_schema": JsonSchema(TEXT, place),
        "regex": Regex("a+", place),
        "ebnf": Grammar("root ::= x", place),
        "structural_tag": Tagged(
            (Tag("<f>", JsonSchema(SCHEMA, f"{place}.structures[0].schema"), "</f>"),), ("<f",), place=place
        ),
    }
    assert shape == expected[name]


DEEP: Any = {}
for _ in range(200):
    DEEP = {"items": DEEP}
HUNGRY = {"allOf": [{"pattern": f"(a|b|c)*{chr(97 + index)}.{{{index + 5}}}"} for index in range(20)], "type": "string"}
RECURSIVE = {"$defs": {"a": {"type": "array", "items": {"$ref": "#/$defs/a"}, "minItems": 1}}, "$ref": "#/$defs/a"}
REFUSED: list[tuple[dict[str, Any], str, str]] = [
    ({"response_format": {"type": "json_schema"}}, "response_format.json_schema", "is required"),
    ({"response_format": {"type": "json_schema", "json_schema": {"name": "x"}}}, NAMED, "is required"),
    (named([1]), NAMED, "must be a JSON schema or its JSON text, got a list"),
    (named("{"), NAMED, "is not JSON"),
    (named({"type": "strin"}), NAMED, "type cannot be"),
    (named({"properties": {"a": {"not": {}}}}), f"{NAMED}.properties.a", "the keyword 'not' is not supported"),
    (named({"$ref": "https://example.com/x"}), NAMED, "nothing is fetched"),
    (named(RECURSIVE), NAMED, "requires itself"),
    (named(DEEP), NAMED, "levels deep"),
    (named(HUNGRY), NAMED, "it is too complex: to compile it"),
    (named({"enum": ["x" * 300_000]}), NAMED, "at most 262144 are accepted"),
    ({"guided_json": SCHEMA, "regex": "a"}, "guided_json", "guided_json and regex are several constraints"),
    ({**named(SCHEMA), "regex": "a"}, "regex", "several constraints of one answer"),
    ({"structured_outputs": {"json": SCHEMA, "regex": "a"}}, "structured_outputs.json", "several constraints"),
    ({"structured_outputs": {"jsn": SCHEMA}}, "structured_outputs.jsn", "did you mean json?"),
    ({"structured_outputs": {"choice": []}}, "structured_outputs.choice", "non-empty list of non-empty texts"),
    ({"structured_outputs": {"choice": [1]}}, "structured_outputs.choice[0]", "expected `str`, got `int`"),
    ({"guided_regex": "(?=a)b"}, "guided_regex", "look-around"),
    ({"guided_regex": 5}, "guided_regex", "expected `str"),
    ({"guided_grammar": "hello"}, "guided_grammar", "no rule `start`"),
    ({"guided_whitespace_pattern": " "}, "guided_whitespace_pattern", "only allowed with a JSON schema"),
    ({"guided_json": SCHEMA, "guided_whitespace_pattern": "("}, "guided_json", "unclosed group"),
    ({"structural_tag": "{"}, "structural_tag", "must be a structural tag as JSON"),
    ({"structural_tag": {"structures": [], "triggers": ["<"]}}, "structural_tag.structures", "from 1 to 256"),
    ({"structural_tag": {**OLDER, "triggers": ["<x"]}}, "structural_tag", "no tag begins with the trigger '<x'"),
    (formatted(type="xml"), f"{AT}.type", "must be one of const_string, json_schema"),
    (formatted(type="sequence", elements=[]), f"{AT}.elements", "at least one format"),
    (formatted(type="json_schema", json_schema={"not": {}}), f"{AT}.json_schema", "'not' is not supported"),
]


def test_what_cannot_be_used_is_refused_before_it_is_queued() -> None:
    """By the field at fault. An engine that finds out can only end the request."""

    async def test() -> None:
        async with serving(max_body_bytes=1 << 20) as server:
            for fields, param, said in REFUSED:
                answer = await server.post("/v1/chat/completions", messages=HI, max_tokens=1, **fields)
                error = answer.json().get("error", {})
                assert (answer.status_code, error.get("param")) == (400, param), (fields, answer.text[:300])
                assert said in error["message"], error["message"]
            assert server.sent == []

    asyncio.run(test())


def test_a_lenient_schema_names_in_a_header_what_is_not_held() -> None:
    """A client that sends strict: false asks for the best effort, and can see what it got."""

    async def test() -> None:
        async with serving() as server:
            body = named({"type": "array", "items": {"uniqueItems": True}}, strict=False)
            answer = await server.post("/v1/chat/completions", messages=HI, max_tokens=1, **body)
            assert answer.status_code == 200, answer.text
            (submit,) = [each for each in server.sent if isinstance(each, Submit)]
            assert json.loads(submit.grammar)["grammars"][0]["json_schema"]["items"] == {}
            assert answer.headers["x-sluice-ignored-fields"] == f"{NAMED}.items.uniqueItems"
        async with serving(strict_fields=True) as server:
            answer = await server.post("/v1/chat/completions", messages=HI, max_tokens=1, **body)
            assert answer.status_code == 400
            assert answer.json()["error"]["param"] == f"{NAMED}.items.uniqueItems"

    asyncio.run(test())


def test_a_hostile_schema_delays_no_health_check() -> None:
    """The event loop answers all others: a schema that is compiled on it would stop every stream."""

    async def test() -> None:
        async with serving() as server:
            hungry = asyncio.create_task(server.post("/v1/completions", prompt="a", max_tokens=1, guided_json=HUNGRY))
            checks = 0
            while not (await asyncio.wait({hungry}, timeout=0.01))[0]:
                assert (await server.http.get("/health")).status_code == 200
                checks += 1
            assert (await hungry).status_code == 400
            assert checks > 5

    asyncio.run(test())

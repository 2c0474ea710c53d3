"""JSON schemas that Hypothesis draws, of every keyword that constraints hold an answer to."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

Schema = dict[str, Any]
NAMES = ("a", "b", "name", 'quo"te', "é", "x y", "$ref", "0")
PATTERNS = ("^[a-c]{1,4}$", "^(foo|ba+r)$", r"^\d{3}-\d{2}$", "x", r"^[^\"]{0,3}$", r"^\w+$")
FORMATS = ("date-time", "time", "date", "duration", "email", "hostname", "ipv4", "ipv6", "uuid", "uri")
VALUES: tuple[Any, ...] = (None, True, False, 0, -1, 1.5, "", 'a\n"b', "é", [], [1, "a"], {}, {"a": [None]})


@st.composite
def integers(draw: st.DrawFn) -> Schema:
    low = draw(st.integers(-1000, 1000))
    high = low + draw(st.integers(0, 5000))
    bounds: list[Schema] = [
        {},
        {"minimum": low},
        {"maximum": high},
        {"minimum": low, "maximum": high},
        {"exclusiveMinimum": low - 1, "exclusiveMaximum": high + 1},
        {"multipleOf": 2 + high % 7},
        {"multipleOf": 5, "minimum": low, "maximum": low + 100},
    ]
    return {"type": "integer", **draw(st.sampled_from(bounds))}


@st.composite
def numbers(draw: st.DrawFn) -> Schema:
    low = draw(st.integers(-4000, 4000)) / 8
    high = low + draw(st.integers(1, 4000)) / 8
    bounds: list[Schema] = [
        {},
        {"minimum": low},
        {"exclusiveMaximum": high},
        {"minimum": low, "maximum": high},
        {"exclusiveMinimum": low, "maximum": high},
    ]
    return {"type": "number", **draw(st.sampled_from(bounds))}


@st.composite
def texts(draw: st.DrawFn) -> Schema:
    least, more = draw(st.integers(0, 3)), draw(st.integers(0, 5))
    kinds: list[Schema] = [
        {"maxLength": least + more, "minLength": least},
        {"maxLength": 8},
        *({"pattern": pattern} for pattern in PATTERNS),
        *({"format": name} for name in FORMATS),
    ]
    return {"type": "string", **draw(st.sampled_from(kinds))}


def leaves() -> st.SearchStrategy[Schema]:
    return st.one_of(
        st.sampled_from([{"type": "null"}, {"type": "boolean"}, {"type": ["null", "boolean"]}]),
        integers(),
        numbers(),
        texts(),
        st.lists(st.sampled_from(VALUES), min_size=1, max_size=5).map(lambda values: {"enum": values}),
        st.sampled_from(VALUES).map(lambda value: {"const": value}),
    )


@st.composite
def arrays(draw: st.DrawFn, items: st.SearchStrategy[Schema]) -> Schema:
    one, least, more = draw(items), draw(st.integers(0, 2)), draw(st.integers(0, 3))
    kinds: list[Schema] = [
        {"items": one, "minItems": least, "maxItems": least + more},
        {"prefixItems": [one, {"type": "boolean"}], "items": False, "minItems": least},
        {"prefixItems": [{"type": "null"}], "items": one, "maxItems": 3},
    ]
    return {"type": "array", **draw(st.sampled_from(kinds))}


@st.composite
def objects(draw: st.DrawFn, values: st.SearchStrategy[Schema]) -> Schema:
    properties = draw(st.dictionaries(st.sampled_from(NAMES), values, min_size=1, max_size=4))
    required = draw(st.lists(st.sampled_from([*properties]), unique=True))
    other = [*properties.values()][-1]
    others: list[Schema] = [
        {},
        {"additionalProperties": False},
        {"additionalProperties": other},
        {"patternProperties": {"^p[0-9]$": other}, "additionalProperties": False},
    ]
    described = {"type": "object", "properties": properties, "required": required, **draw(st.sampled_from(others))}
    counted = {"type": "object", "additionalProperties": other, "minProperties": 1, "maxProperties": 3}
    return draw(st.sampled_from([described, described, described, counted]))


@st.composite
def combined(draw: st.DrawFn, parts: st.SearchStrategy[Schema]) -> Schema:
    one, other = draw(parts), draw(parts)
    tree = {
        "type": "object",
        "properties": {"value": one, "next": {"anyOf": [{"$ref": "#/$defs/tree"}, {"type": "null"}]}},
        "required": ["value", "next"],
    }
    kinds: list[Schema] = [
        {"anyOf": [one, other]},
        {"anyOf": [one, other, {"type": "null"}], "title": "either"},
        {"oneOf": [{"type": "string", "maxLength": 4}, {"type": "integer"}, {"type": "array", "items": one}]},
        {"allOf": [one]},
        {
            "allOf": [
                {"type": "object", "properties": {"a": one}, "required": ["a"]},
                {"type": "object", "properties": {"b": other}, "additionalProperties": True},
            ]
        },
        {"$defs": {"one": one}, "type": "object", "properties": {"a": {"$ref": "#/$defs/one"}}, "required": ["a"]},
        {"$defs": {"tree": tree}, "$ref": "#/$defs/tree"},
    ]
    return draw(st.sampled_from(kinds))


def schemas() -> st.SearchStrategy[Schema]:
    """Schemas of which each has a value. Definitions are only at the root, where references find them."""
    leaf = leaves()
    inner = st.one_of(leaf, arrays(leaf), objects(leaf), objects(st.one_of(leaf, arrays(leaf), objects(leaf))))
    return st.one_of(inner, inner, combined(inner))

"""Random tools, and calls of them: nested objects, lists, options, other scripts, texts with the tags of a format."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from sluice.text.parsers.tools import Tool

NAMES = ("city", "days", "größe", "max-len", "unit_2", "名前", "Zip", "note", "is_ok", "a b")
TOOL_NAMES = ("weather", "get_time", "mcp__files__read", "find-flight", "search.web", "f")
TEXTS = (
    *(
        "",
        " ",
        "Ulm",
        "Köln ist schön",
        "東京 🗼",
        "12",
        "3.50",
        "true",
        "null",
        "-",
        "it's",
        'say "hi"',
        "a, b: c = d",
    ),
    *("two\nlines", "\n", "tab\there", "{}", "[1, 2]", '{"a": 1}', "f(x)", "</b>", "#!/bin/sh\nrm -f *\n", "x" * 200),
)
PATHS = ("C:\\new\\table", 'a\\"b', "\\")
"""Texts with backslashes."""


class DrawnCall(NamedTuple):
    name: str
    arguments: dict[str, Any]


class ToolSet(NamedTuple):
    tools: tuple[Tool, ...]
    calls: tuple[DrawnCall, ...]


def drawn_tool_set(seed: int, tags: Sequence[str], *, calls: int = 3, escapes: bool = True) -> ToolSet:
    """Return tools, and at least one call.

    Args:
        tags: texts that may stand in the values of the calls.
        calls: at most so many.
        escapes: there may be backslashes.
    """
    draw = random.Random(seed)
    names = draw.sample(TOOL_NAMES, draw.randint(1, 4))
    tools = tuple(Tool(name, "What it does.", _object(draw, 0)) for name in names)
    texts = [*TEXTS, *(PATHS if escapes else ())]
    texts += [spelled for tag in tags for spelled in (f"a {tag} b", f"{tag}, twice: {tag}.", f"<b>{tag}</b>")]
    called = [draw.choice(tools) for _ in range(draw.randint(1, calls))]
    return ToolSet(tools, tuple(DrawnCall(tool.name, _value(draw, tool.schema, texts)) for tool in called))


def _object(draw: random.Random, depth: int) -> dict[str, Any]:
    names = draw.sample(NAMES, draw.randint(0 if depth == 0 else 1, 4))
    properties = {name: _schema(draw, depth + 1) for name in names}
    required = [name for name in names if draw.random() < 0.5]
    return {"type": "object", "properties": properties, "required": required}


def _schema(draw: random.Random, depth: int) -> dict[str, Any]:
    kinds = ["string", "string", "string", "integer", "number", "boolean", "enum", "optional"]
    kind = draw.choice([*kinds, "array", "object"] if depth < 3 else kinds)
    match kind:
        case "enum":
            return {"type": "string", "enum": ["C", "F", "größer als"]}
        case "optional":
            return {"anyOf": [{"type": "integer"}, {"type": "null"}]}
        case "array":
            return {"type": "array", "items": _schema(draw, depth + 1)}
        case "object":
            return _object(draw, depth)
        case "number":  # without bounds a grammar allows exponents that are beyond all numbers
            return {"type": "number", "minimum": -1000, "maximum": 1000}
    return {"type": kind, "description": "A value."}


def _value(draw: random.Random, schema: Mapping[str, Any], texts: Sequence[str]) -> Any:
    if "anyOf" in schema:
        return draw.choice([None, 7])
    if "enum" in schema:
        return draw.choice(schema["enum"])
    match schema["type"]:
        case "object":
            required = schema.get("required", ())
            given = {
                name: each for name, each in schema["properties"].items() if name in required or draw.random() < 0.6
            }
            return {name: _value(draw, each, texts) for name, each in given.items()}
        case "array":
            return [_value(draw, schema["items"], texts) for _ in range(draw.randint(0, 3))]
        case "string":
            return draw.choice(texts)
        case "integer":
            return draw.choice([0, 3, -12, 89073, 10**12])
        case "number":
            return draw.choice([0.5, -2.25, 3, 1.0, 999.125])
    return draw.random() < 0.5

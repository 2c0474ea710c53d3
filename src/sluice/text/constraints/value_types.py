"""The types of JSON that a schema allows, and values of them that stand without quotes in a text."""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Mapping
from typing import Any

import msgspec

from sluice.text.constraints.schema_tree import referred

ALL = frozenset({"string", "number", "boolean", "null", "object", "array"})
"""Integers are numbers here."""
HALVES = re.compile("[\ud800-\udfff]")
PYTHON: Mapping[str, str] = {"True": "true", "False": "false", "None": "null"}
"""Chat templates write values of earlier calls as Python does, so models do, too."""
MAX_LITERAL = 1 << 14
"""Characters of a list or an object that is read as Python writes it."""
MAX_DEPTH = 32
"""Schemas within each other that are looked at. What is deeper, or refers to itself, allows all."""


def types_of(schema: Any, root: Mapping[str, Any]) -> frozenset[str]:
    """Return the types that a schema allows, through its lists of options and local references.

    Args:
        root: what its references (`#/...`) begin at.
    """
    return _Reader(root).types(schema, 0)


class _Reader:
    """Reads schemas with one root, and each that is referred to once: the work is linear in what the schema holds."""

    def __init__(self, root: Mapping[str, Any]) -> None:
        self._root = root
        self._referred: dict[str, frozenset[str]] = {}

    def types(self, schema: Any, depth: int) -> frozenset[str]:
        if not isinstance(schema, Mapping) or depth > MAX_DEPTH:
            return ALL
        found = _own(schema)
        for name in ("anyOf", "oneOf"):
            options = schema.get(name)
            if isinstance(options, list) and options:
                found &= frozenset[str]().union(*(self.types(each, depth + 1) for each in options))
        parts = schema.get("allOf")
        for each in parts if isinstance(parts, list) else ():
            found &= self.types(each, depth + 1)
        reference = schema.get("$ref")
        return found & self._types_at(reference, depth) if isinstance(reference, str) else found

    def _types_at(self, reference: str, depth: int) -> frozenset[str]:
        if reference not in self._referred:
            self._referred[reference] = ALL  # for one that refers to itself
            self._referred[reference] = self.types(referred(reference, self._root), depth + 1)
        return self._referred[reference]


def type_of(value: Any) -> str:
    """Return the type of a value that was parsed from JSON."""
    if value is None:
        return "null"
    kinds = {bool: "boolean", int: "number", float: "number", str: "string", list: "array"}
    return kinds.get(type(value), "object")


def _own(schema: Mapping[str, Any]) -> frozenset[str]:
    """Return the types that the members `type`, `enum` and `const` allow."""
    found = ALL
    given = schema.get("type")
    names = [given] if isinstance(given, str) else given
    if isinstance(names, list) and names:
        found &= frozenset("number" if name == "integer" else str(name) for name in names)
    options = schema.get("enum")
    if isinstance(options, list) and options:
        found &= frozenset(map(type_of, options))
    if "const" in schema:
        found &= {type_of(schema["const"])}
    return found


def dumped(value: Any) -> str:
    """Return the JSON of a value; in ASCII if it has halves of characters, which cannot be sent.

    Raises:
        ValueError: a number is not finite.
        TypeError: it is no value of JSON.
    """
    text = json.dumps(value, ensure_ascii=False, allow_nan=False)
    return json.dumps(value) if HALVES.search(text) else text


def json_of(text: str, types: frozenset[str]) -> str:
    """Return a value as JSON: as it stands if that is JSON, as Python has it if it is one of Python's, else as a text.

    Args:
        types: that its schema allows. Where a text may be, JSON of another type that may not be is one.
    """
    try:
        content = msgspec.json.decode(PYTHON.get(text, text))
        if "string" not in types and isinstance(content, str):
            return json_of(content, types)
        if "string" not in types or type_of(content) in types:
            return dumped(content)
    except (ValueError, RecursionError):
        pass
    if "string" not in types and text.startswith(("[", "{")) and len(text) <= MAX_LITERAL:
        try:
            return dumped(ast.literal_eval(text))
        except (ValueError, TypeError, SyntaxError, MemoryError, RecursionError):
            pass
    return dumped(text)


def spelling_of(value: Any, types: frozenset[str]) -> str:
    """Return the text that stands for a value: `json_of` returns it, or a schema of texts alone takes it as it is."""
    content = json.dumps(value, ensure_ascii=False)
    if isinstance(value, str) and (types == {"string"} or json_of(value, types) == content):
        return value
    return content

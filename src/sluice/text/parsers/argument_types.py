"""The arguments of a tool as JSON, the types that they may have, and values brought to these while they come."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import msgspec

from sluice.text.constraints.object_forms import forms_of, schemas_of
from sluice.text.constraints.value_types import ALL, dumped, json_of, types_of

TEXT = frozenset(("string",))


def object_of(text: str) -> dict[str, Any] | None:
    """Return the object whose JSON a text is; None if it is none by RFC 8259, or its values cannot be kept."""
    try:
        content = msgspec.json.decode(text)
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        return None
    return content if isinstance(content, dict) else None


class ArgumentTypes:
    """The types that the arguments of a tool may have, by name.

    Args:
        schema: of the object of the arguments.
    """

    def __init__(self, schema: Mapping[str, Any]) -> None:
        self._schema, self._forms = schema, forms_of(schema)
        self.names = dict.fromkeys(name for form in self._forms for name in form.properties)
        """In the order of the schema."""

    def of(self, name: str) -> frozenset[str]:
        schemas = schemas_of(self._forms, name)
        return frozenset[str]().union(*(types_of(each, self._schema) for each in schemas)) if schemas else ALL


class Retyped:
    """Gives the members of an object that arrives in pieces the types of their schemas: a number that must be a text,
    and a text that must be something else. All other text passes as it comes.

    Args:
        types: of the members.
    """

    def __init__(self, types: ArgumentTypes) -> None:
        self._types = types
        self._depth = 0
        self._in_string = self._is_escaped = False
        self._key = ""
        """The name of the last member, as it is written."""
        self._is_key = False
        """The string is one."""
        self._has_key = False
        """A value comes next."""
        self._held = ""
        """A value that must change, so far."""

    def push(self, text: str) -> str:
        """Return what is certain of a text with what was held back before it."""
        return "".join(map(self._after, text))

    def finish(self) -> str:
        """Return what is held, when no more comes."""
        held, self._held = self._held, ""
        return held

    def _after(self, char: str) -> str:
        if self._in_string:
            return self._within_string(char)
        if self._held and not (char in ",}]" or char.isspace()):
            self._held += char
            return ""
        if self._held:
            return dumped(self.finish()) + self._after(char)
        is_value = self._has_key and not char.isspace()
        if is_value:
            self._has_key = False
            types, is_text = self._types.of(text_of(self._key)), char == '"'
            if "string" not in types if is_text else types == TEXT and (char.isdigit() or char in "-tf"):
                self._held, self._in_string = char, is_text
                return ""
        if char == '"':
            self._in_string, self._is_key = True, self._depth == 1 and not is_value
            self._key = char if self._is_key else self._key
        elif char in "{[":
            self._depth += 1
        elif char in "}]":
            self._depth -= 1
        elif char == ":" and self._depth == 1:
            self._has_key = True
        return char

    def _within_string(self, char: str) -> str:
        self._in_string = self._is_escaped or char != '"'
        self._is_escaped = char == "\\" and not self._is_escaped
        if self._held:
            self._held += char
            return "" if self._in_string else json_of(text_of(self.finish()), self._types.of(text_of(self._key)))
        if self._is_key:
            self._key += char
        return char


def text_of(written: str) -> str:
    """Return the text that a string of JSON is; what is none, as it stands."""
    try:
        return str(json.loads(written))
    except ValueError:
        return written
